"""Writes what the chart ``gpunode`` derives from elsewhere: ``make chart-files``.

``values.schema.json`` and the tables in ``README.md`` come from the comments in ``values.yaml``,
from the daemon's settings, and from the rules. The rules, the dashboards and the example
for Alertmanager are links, which Helm follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from alerts.document import handed_on, rules_with_comments
from gpunode.cli.platforms import PLATFORMS
from gpunode.cli.settings.run import RunSettings
from gpunode.config.fields import leaves
from gpunode.explain.rule_files import THRESHOLD

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "gpunode"
EXAMPLES = ROOT / "helm" / "examples"

OF_THE_CHART = {
    *(("path", "rootfs"), ("web", "listen_address"), ("client", "socket")),
    *(("compat",), ("config", "file"), ("web", "config_file"), ("web", "config", "file")),
}
"""Settings that the chart gives the daemon as options, which would override those of a file."""

REFUSED = {
    "arguments": "every metric is exported; drop some with monitor.metricRelabelings",
    "autoscaling": "there is one pod on each node; see verticalPodAutoscaler",
    "basicAuth": "users are in the web.yml of webConfigSecret",
    "configmaps": "see extraVolumes and extraVolumeMounts",
    "containerSecurityContext": "see securityContext; that of the pod is podSecurityContext",
    "customMetrics": "every metric is exported; drop some with monitor.metricRelabelings",
    "daemonsetAnnotations": "see daemonSetAnnotations",
    "dcgmExporter": "this is no part of the GPU operator; see compat",
    "driver.enabled": "the chart installs no driver; see platform and driver.library",
    "env": "see extraEnv, a list",
    "extraConfigMapVolumes": "see extraVolumes",
    "extraHostVolumeMounts": "see extraVolumes and extraVolumeMounts",
    "extraHostVolumes": "see extraVolumes; for the driver, platform or driver.library",
    "extraInitContainers": "see initContainers",
    "hostPID": "it comes with the profiles jobs and network, which need it",
    "hostRootFsMount": "see hostRoot",
    "image.registry": "it is the beginning of image.repository; see also global.imageRegistry",
    "ingress": "each node is a target of its own; Prometheus scrapes the pods",
    "internalTrafficPolicy": "see service.internalTrafficPolicy",
    "kubeRBACProxy": "see extraContainers, and the example kube-rbac-proxy-values.yaml",
    "kubernetesDRA": "the kubelet tells of claims as well; see the profile pods",
    "mapPodsMetrics": "see the profile pods",
    "monitor.additionalLabels": "see monitor.labels",
    "monitor.bearerTokenSecret": "the Prometheus Operator deprecates it; see monitor.authorization",
    "monitor.targetLabels": "see monitor.podTargetLabels",
    "persistence": "see incidents.volume; the daemon keeps nothing else",
    "podDisruptionBudget": "a drain leaves the pods of a DaemonSet alone",
    "podMonitor": "see monitor",
    "prometheus": "see monitor and rules",
    "prometheusRule": "see rules",
    "rbac": "the daemon never asks the API server, so it needs no rights there",
    "releaseLabel": "see monitor.labels and rules.labels",
    "replicaCount": "there is one pod on each node",
    "rollingUpdate": "see updateStrategy",
    "rules.additionalLabels": "see rules.labels",
    "rules.alertLabels.severity": (
        "two tiers of an alert would be one; who is told is for routes of Alertmanager to say"
    ),
    "rules.alerts": "see rules.disabled and rules.thresholds",
    "rules.keepFiringFor": "the rules need Prometheus 2.42 or later, which knows keep_firing_for",
    "rules.part": "one engine evaluates all rules; see docs/rules.md#beyond-one-prometheus",
    "rules.settings": "see rules.thresholds and rules.grafana; other figures are in the rules",
    "rules.severities": "who is told is for routes of Alertmanager to say",
    "secrets": "see extraVolumes and extraVolumeMounts",
    "service.address": "see port",
    "service.clusterIP": "see service.type",
    "service.enable": "see service.enabled",
    "service.port": "see port",
    "service.portName": "see monitor.port",
    "service.targetPort": "see port, and monitor.port for a proxy",
    "serviceAccount.automountServiceAccountToken": "the daemon never asks the API server",
    "serviceMonitor": "see monitor, with monitor.kind ServiceMonitor",
    "sidecars": "see extraContainers",
    "startupProbe": "the daemon answers within seconds; see livenessProbe",
    "tlsServerConfig": "certificates are in webConfigSecret",
    "toolkit": "this is no part of the GPU operator; see runtimeClassName",
    "topologySpreadConstraints": "there is one pod on each node",
    "updateStrategy.rollingUpdate.maxSurge": (
        "two daemons on a node would be one target, and only one has the socket of jobs"
    ),
}
"""Values of other exporters' charts that this one does not have, and why or what instead."""

ENABLED = {
    "type": "boolean",
    "description": "Of no effect here: the condition of a chart that depends on this one.",
}
"""https://helm.sh/docs/topics/charts/#tags-and-condition-fields-in-dependencies"""

BLOCK = re.compile(
    r"(?P<begin><!-- generated by make chart-files: (?P<what>\w+) -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


# The values


@dataclass(frozen=True, slots=True)
class Value:
    """A key of ``values.yaml``, with what its comments say."""

    path: tuple[str, ...]
    default: Any
    description: str
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return ".".join(self.path)


def values() -> Iterator[Value]:
    """Every key, parents before what is in them; below a map with a description, none."""
    text = (CHART / "values.yaml").read_text()
    top = yaml.compose(text)
    if isinstance(top, yaml.MappingNode):
        yield from _values(text.splitlines(), top, yaml.safe_load(text), ())


def _values(
    lines: list[str], node: yaml.MappingNode, content: dict[str, Any], within: tuple[str, ...]
) -> Iterator[Value]:
    for key, below in node.value:
        description, schema = _comments(lines, key.start_mark.line)
        path = (*within, key.value)
        yield Value(path, content[key.value], description, schema)
        if isinstance(below, yaml.MappingNode) and not description:
            yield from _values(lines, below, content[key.value], path)


def _comments(lines: list[str], at: int) -> tuple[str, dict[str, Any]]:
    """What the comments right above a line say."""
    begin = at
    while begin and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    comments = [line.strip().removeprefix("#").strip() for line in lines[begin:at]]
    schema: dict[str, Any] = {}
    for comment in comments:
        if comment.startswith("@schema "):
            schema |= json.loads(comment.removeprefix("@schema "))
    said = " ".join(comment for comment in comments if not comment.startswith("@schema "))
    return said.partition("-- ")[2], schema


KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def schema() -> dict[str, Any]:
    """The JSON schema of the values: a key that the chart does not have is an error."""
    made: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart gpunode",
        **_closed({"global": {"type": "object"}, "enabled": ENABLED}),
    }
    special = _special()
    for value in values():
        where = made
        for part in value.path[:-1]:
            where = where["properties"][part]
        if value.name in special:
            one = special[value.name]
        elif isinstance(value.default, dict):
            one = {"type": "object"} if value.description else _closed({})
        elif "enum" in value.schema:
            one = {}
        else:
            one = {"type": KINDS[type(value.default)]}
        said = {"description": value.description} if value.description else {}
        where["properties"][value.path[-1]] = one | value.schema | said
    for name, why in REFUSED.items():
        *within, last = name.split(".")
        where = made
        for part in within:
            where = where["properties"].get(part, {})
            if "properties" not in where:
                break
        else:
            where["properties"][last] = {"description": f"Refused: {why}."}  # by a template
    return made


def _special() -> dict[str, dict[str, Any]]:
    """The schemas of values whose keys are listed elsewhere."""
    rules = rules_with_comments()
    thresholds = {
        one.rule.labels["name"]: {"type": "number", "description": one.comment}
        for one in rules
        if one.rule.name == THRESHOLD
    }
    alerts = {one.rule.name: None for one in rules if one.rule.alerts}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    named = {
        name: texts
        for value in values()
        if (name := value.name).lower().endswith(("labels", "annotations"))
        and isinstance(value.default, dict)
    }
    settings = _closed({})
    for path, field in leaves(RunSettings.model_fields):
        if path in OF_THE_CHART:
            continue
        where = settings
        for part in path[:-1]:
            where = where["properties"].setdefault(part, _closed({}))
        where["properties"][path[-1]] = _setting(field)
    return {
        **named,
        "config": settings,
        "nodeSelector": texts,
        "affinity": {"type": ["object", "null"]},
        "platform": {"enum": ["", *(one.name for one in PLATFORMS)]},
        "updateStrategy": {
            **_closed({"type": {"enum": ["RollingUpdate", "OnDelete"]}, "rollingUpdate": {}}),
        },
        "rules.thresholds": {**_closed(thresholds), "propertyNames": {"enum": [*thresholds]}},
        "rules.disabled": {"type": "array", "items": {"enum": [*alerts]}},
    }


def _setting(field: FieldInfo) -> dict[str, Any]:
    """The schema of a setting of the daemon, which reads a text whatever it looks like."""
    kind: Any = field.annotation
    alone: type[BaseModel] = create_model("Alone", it=(kind, field))
    found: dict[str, Any] = alone.model_json_schema(by_alias=False)["properties"]["it"]
    if "enum" in found:
        wanted = {"enum": found["enum"]}
    elif found.get("type") in ("integer", "number", "boolean"):
        limits = ("type", "minimum", "exclusiveMinimum", "maximum")
        wanted = {name: found[name] for name in limits if name in found}
    else:
        kept = {"pattern": found["pattern"]} if "pattern" in found else {}
        wanted = {"type": ["string", "number", "boolean"], **kept}
    return wanted | {"description": field.description}


FROM_HERE = "# Generated from helm/generate.py by `make chart-files`; do not edit.\n"


def platforms() -> str:
    """What the chart needs on each platform, for its templates."""
    written = {}
    for one in PLATFORMS:
        fields = {
            "source": one.source,
            "runtimeClassName": one.runtime_class,
            "driverLibrary": one.driver_library,
            "extraVolumes": list(one.extra_volumes),
            "extraVolumeMounts": list(one.extra_volume_mounts),
            "constraints": one.constraints,
            "cannot": one.cannot,
        }
        written[one.name] = {name: value for name, value in fields.items() if value}
    head = (
        "# Generated from exporter/gpunode/cli/platforms.py by `make chart-files`; do not edit.\n"
    )
    return head + yaml.dump(written, sort_keys=False, allow_unicode=True, Dumper=Plain, width=100)


class Plain(yaml.SafeDumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 yaml asks so
        return True


def table_of_platforms() -> str:
    """The platforms for people."""
    rows = ["| `platform` | what it sets | what cannot work there |", "|---|---|---|"]
    for one in PLATFORMS:
        sets = [
            f"`runtimeClassName: {one.runtime_class}`" if one.runtime_class else "",
            f"`driver.library: {one.driver_library}`" if one.driver_library else "",
            "a volume that asks for all GPUs" if one.extra_volumes else "",
            "a RoleBinding to the security context constraint of the profile"
            if one.constraints
            else "",
        ]
        said = "refused" if one.cannot else ", ".join(filter(None, sets)) or "nothing"
        limits = f"{one.cannot or one.limits} ([source]({one.limits_source or one.source}))"
        rows.append(f"| `{one.name}` | {said} ([source]({one.source})) | {limits} |")
    return "\n".join(rows) + "\n"


def table() -> str:
    """The values for people."""
    rows = ["| value | default | |", "|---|---|---|"]
    for value in values():
        if value.description:
            default = json.dumps(value.default, ensure_ascii=False)
            shown = f"`{default}`" if len(default) < 60 else "see values.yaml"
            rows.append(f"| `{value.name}` | {shown} | {value.description} |")
    return "\n".join(rows).replace("\\", "\\\\") + "\n"


def readme() -> str:
    """The chart's README, with its generated blocks renewed."""
    written = (CHART / "README.md").read_text()
    tables = {"values": table(), "platforms": table_of_platforms()}
    return BLOCK.sub(
        lambda found: f"{found['begin']}{tables[found['what']]}{found['end']}", written
    )


UP_REGEX = re.compile(r"(?m)^( +regex: )up\|.*$")
SHARDS = EXAMPLES / "shards-prometheus.yaml"


def shards() -> str:
    """The example of shards, with the names of what they hand on."""
    read = handed_on([one.rule for one in rules_with_comments()])
    names = "|".join(sorted(read, key=lambda name: name != "up"))
    return UP_REGEX.sub(rf"\g<1>{names}", SHARDS.read_text())


def files() -> dict[Path, str]:
    """Everything that is generated, by its path."""
    return {
        SHARDS: shards(),
        CHART / "values.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        CHART / "files" / "platforms.yaml": platforms(),
        CHART / "files" / "refused.yaml": FROM_HERE + yaml.safe_dump(REFUSED, width=200),
        CHART / "README.md": readme(),
    }


def main() -> None:
    """Rewrite the generated files of the chart."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
