// What a dashboard may have, as a major version of Grafana declares it: the paths of tsconfig.json
// say which. Its own type leaves the options of panels open.

import type { Dashboard, Panel, RowPanel, TableFieldOptions } from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Nothing = Record<string, never>;
type Of<Options, Custom> = Omit<Panel<Options, Custom>, 'options'> & { options: Options };

export interface Board {
  dashboard: Dashboard;
  row: RowPanel;
  bargauge: Of<bargauge.Options, Nothing>;
  heatmap: Of<heatmap.Options, heatmap.FieldConfig>;
  stat: Of<stat.Options, Nothing>;
  'state-timeline': Of<timeline.Options, timeline.FieldConfig>;
  table: Of<table.Options, TableFieldOptions>;
  timeseries: Of<timeseries.Options, timeseries.FieldConfig>;
}
