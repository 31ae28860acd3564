// What a reader of a table sees, and where each link of a row leads, by Grafana's own functions.
//
// Reads {"panel": …, "series": [[{labels, value}, …] of each query], "variables": {name: value}} from
// standard input and writes [{"cells": {column: text}, "links": {column: address}}, …], a row each.
globalThis.window = globalThis;
globalThis.navigator ??= { languages: ['en-GB'] };
const grafana = require('@grafana/data');
const { firstValueFrom } = require('rxjs');
const lodash = require('lodash');

const NOW = Date.now();

const asIs = grafana.identityOverrideProcessor;
const PROCESSORS = {
  links: grafana.dataLinksOverrideProcessor,
  mappings: grafana.valueMappingsOverrideProcessor,
  displayName: grafana.displayNameOverrideProcessor,
};

// The properties that panels override; those of the panel's own are under "custom.".
const properties = new grafana.Registry(() =>
  ['links', 'mappings', 'displayName', 'unit', 'decimals', 'color', 'noValue', 'thresholds', 'min', 'max']
    .map((id) => ({ id, path: id, process: PROCESSORS[id] ?? asIs, shouldApply: () => true }))
    .concat(
      ['width', 'cellOptions', 'hidden', 'align', 'filterable', 'inspect', 'minWidth'].map((name) => (
        { id: `custom.${name}`, path: name, isCustom: true, process: asIs, shouldApply: () => true }))));

grafana.standardTransformersRegistry.setInit(() =>
  Object.values(grafana.standardTransformers).filter((each, at, all) => all.findIndex((other) => other.id === each.id) === at).map((each) => (
    { id: each.id, name: each.name, transformation: each, editor: () => null })));
grafana.standardFieldConfigEditorRegistry.setInit(() => []);

// A query's answer in the format "table": a column for each label that any of its series has.
function frame(series, letter, alone) {
  const labels = [...new Set(series.flatMap((each) => Object.keys(each.labels)))].sort();
  return grafana.toDataFrame({
    refId: letter,
    fields: [
      { name: 'Time', type: grafana.FieldType.time, values: series.map(() => NOW) },
      ...labels.map((label) => (
        { name: label, type: grafana.FieldType.string, values: series.map((each) => each.labels[label] ?? '') })),
      { name: alone ? 'Value' : `Value #${letter}`, type: grafana.FieldType.number, values: series.map((each) => Number(each.value)) },
    ],
  });
}

// ${name}, ${name:format} and ${__data.fields["name"]}, as public/app/features/templating has them.
function replacing(variables) {
  return (text, scoped) =>
    text.replace(/\$\{([^}]+)\}/g, (whole, name) => {
      const field = /^__data\.fields\["(\w+)"\]$/.exec(name);
      if (field) {
        const { frame: data, rowIndex } = scoped.__dataContext.value;
        const fields = grafana.getFieldDisplayValuesProxy({ frame: data, rowIndex });
        return encodeURI(String(lodash.get({ fields }, ['fields', field[1]]) ?? ''));
      }
      return variables[name] ?? whole;
    });
}

async function main(asked) {
  const alone = asked.series.length === 1;
  const frames = asked.series.map((series, at) => frame(series, String.fromCharCode(65 + at), alone));
  const replaceVariables = replacing(asked.variables);
  const [data] = grafana.applyFieldOverrides({
    data: await firstValueFrom(grafana.transformDataFrame(asked.panel.transformations, frames)),
    fieldConfig: asked.panel.fieldConfig,
    fieldConfigRegistry: properties,
    replaceVariables,
    theme: grafana.createTheme(),
  });
  return Array.from({ length: data?.length ?? 0 }, (_, rowIndex) => {
    const row = { cells: {}, links: {} };
    for (const field of data.fields) {
      if (field.config.custom?.hidden) continue;
      const name = grafana.getFieldDisplayName(field, data);
      row.cells[name] = grafana.formattedValueToString(field.display(field.values[rowIndex]));
      for (const link of field.getLinks?.({ valueRowIndex: rowIndex }) ?? []) row.links[name] = link.href;
    }
    return row;
  });
}

main(JSON.parse(require('fs').readFileSync(0, 'utf8'))).then((rows) => console.log(JSON.stringify(rows)));
