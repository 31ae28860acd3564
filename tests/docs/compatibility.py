"""Which versions and forms of others' programs are read: from the tables of the tests of each.

python -m tests.docs.compatibility docs/compatibility.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import tests.nccl.test_nccl
from gpunode.gpu.models import MODELS
from gpunode.host.lustre import Lustre
from gpunode.host.rdma_counters import CXI, DRIVERS, MLX5, STANDARD, What
from gpunode.serving.engines import ENGINES, FIGURES, Alias
from tests.corpus.families import first_try, load
from tests.export.dcgm_clients import (
    CLIENTS,
    KINDS_NOT_ANSWERED,
    NOT_ANSWERED,
    WATCHES_NOT_ANSWERED,
)
from tests.machine import MACHINES
from tests.nccl.test_inspector import INSPECTORS

READ, NONE = "✓", "-"

NEWEST = 30
"""The newest minor version of NCCL 2 whose source the forms were held against."""

RAS_FROM = (2, 24)
"""NCCL's first version with its RAS service."""

RAS_JSON = tests.nccl.test_nccl.LOGS / "h200x2_hang_ras_json.txt"

LUSTRE = {"2.12 (`/proc`)": "scratch", "2.16 (debugfs)": "a361000"}
"""The filesystems of tests/machines/lustre by the version of the client."""

LUSTRE_LACKS = {
    ("2.12 (`/proc`)", "gpunode_lustre_operation_seconds_total"): "it counts operations, and not "
    "their time, before 2.14",
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """A version of the driver of mlx5 adapters, and the counters of ours that it has not."""

    name: str
    lacks: frozenset[str]


SINCE_5_0 = frozenset({"roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart"})
OFED = (
    Adapter("MLNX_OFED 4.1 to 4.9, Linux before 5.6", SINCE_5_0),
    Adapter("MLNX_OFED 5.0 and later, DOCA-OFED, Linux 5.6 and later", frozenset()),
)
"""https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters"""

OF_MLX5: Mapping[str, str] = {
    name: of.kind
    for name, of in MLX5.items()
    if of is not None and of.what in ("congestion", "loss") and of.choice == 0
}
"""The counters of ``hw_counters`` that are told, and their kinds."""

HAVE_STANDARD = frozenset({"mlx5", "mlx4", "bnxt_re", "rxe"})
"""Drivers that answer for the counters of the standard: they have ``process_mad``."""

COUNTER_WORDS: Mapping[What, str] = {
    "bytes": "bytes",
    "link_error": "errors of the link",
    "loss": "lost packets",
    "retransmitted_bytes": "bytes sent again",
    "congestion": "congestion",
    "failure": "failed requests",
}

TOLD_APART = {each.name: next(e for e in ENGINES if e.name == each.name) for each in ENGINES}
"""Of an engine with several sets of names, the first."""

Row = tuple[str, ...]


HEAD = """\
# Compatibility

Generated from the tables of the tests by `make docs`; do not edit. A test tries every ✓, with
input from the program itself or from its source."""

GPUS = """
## GPUs

Linux on amd64 and arm64, Python 3.10 or later, and a GPU of NVIDIA with its driver; other vendors'
GPUs are not read. Without a GPU, gpunode watches the node.

| GPU | counters of its units | what that means |
|---|---|---|
| H100, H200 | the driver's (GPM) | the [ledger](ledger.md) was measured on these |
| other Hopper, Blackwell | the driver's (GPM) | the ledger is less accurate (1) |
| Volta, Turing, Ampere, Ada | [DCGM's](training.md#dcgm), if its host engine runs | as above |
| the same without DCGM, and older | none | fewer states; a hang is named after a minute |
| MIG instances | as their GPU's | no power reading of their own |
| GB10, Jetson | as their generation | they share the CPUs' memory: no size or use of their own |

(1) It takes the ceilings of the closer of the two;
[`gpunode calibrate`](ledger.md#whose-ceilings-it-uses) measures those of your GPUs.

gpunode has datasheet figures of {models} [models](../exporter/gpunode/gpu/models.py), and takes any
other for one of the same compute capability."""

NCCL = """
## NCCL

A log (`NCCL_DEBUG_FILE`) has communicators, transports and warnings. The RAS service knows the
rank that a collective waits for. The Inspector plug-in (`NCCL_INSPECTOR_DUMP_DIR`) writes the
time of each collective. In brackets stands the version whose form is read.
"""

DEVICE_IDS = """
## Device IDs

How the kubelet's pod-resources API names GPUs and shares of GPUs:
"""

OF_DEVICE_IDS = """
If the driver does not report a MIG instance's profile and place, a claim of DRA adds no
`gpunode_gpu_allocated` for it. HAMi before 2.9 may give a container another GPU than its slot
names; owners of processes (`via="process"`) are right."""

DCGM = """
## dcgm-exporter

`--compat=dcgm` exports [these names](metrics.md#dcgm-exporters-with---compatdcgm): dcgm-exporter's
default set, and what public dashboards, rules and programs ask for. Fields that DCGM 4.6 and 4.7
renamed have both names, the new one in its own unit: `DCGM_FI_DEV_GPU_UTIL_RATIO` is 0 to 1, as in
4.7. The tests ask a real Prometheus for each name of these clients, with their labels:
"""

NOT_DCGM = """
`Hostname` and `hostname` are `web.node-name`, `NODE_NAME`, or the host's name; `hpc_job` is the
Slurm job. A MIG instance has its GPU's `UUID` and `modelName`, and `GPU_I_ID` and `GPU_I_PROFILE`.
`nvidia_gpu_jobId` and `nvidia_gpu_duty_cycle` are those of
[jobstats](https://github.com/PrincetonUniversity/jobstats).

Fields of DCGM without a series ([all of them](../tests/export/dcgm_clients.py)):
"""

CHARTS = """
## Values of other exporters' charts

This chart takes what sites set in the charts of dcgm-exporter, node_exporter and others
([tests/helm/intentions](../tests/helm/intentions)). It refuses a value that it does not have, and
says which one to set instead."""

SERVING = """
## Inference engines

What each engine calls the figures of [serving.md](serving.md), in its newest version; older names
are read, too. Names after a `+` are added, and the figure is absent without them. Through Ray or
OpenTelemetry, `:` may be `_`, and `ray_` may come before. A name in brackets is a histogram's.
Pages of other versions are read as far as their names are known; the rest is [unread](unread.md).
No engine here was run on a GPU: its page is (1) written from the source, (2) from the package's
own metrics code, (3) from the program under a load on a CPU, or (4) from a report.
"""

LUSTRE_HEAD = """
## Lustre

Clients {versions}: every `gpunode_lustre_` metric, except"""

RDMA = """
## RDMA adapters

What the counters of each driver show, in `counters/` or `hw_counters/`. Other counters count in
`gpunode_unread_total`.
"""

OF_OFED = """
mlx5 before MLNX_OFED 5.0 and Linux 5.6 has no {lacks}."""


FIRST_TRY = """
Of ninety samples from public reports that no reader was written from
([tests/corpus/fresh.yaml](../tests/corpus/fresh.yaml)), {right} were right at the first try,
{unread} unread, {wrong} wrong and {silent} dropped; today none is wrong or dropped. Of the thirty
found by somebody who had seen no reader, 22 were right, 2 unread, 5 wrong and 1 dropped."""


def document() -> str:
    """The document."""
    (old, *_) = OFED
    lines = [
        HEAD,
        GPUS.format(models=len(MODELS)),
        NCCL,
        *_table(("version", "log", "RAS, text", "RAS, JSON", "Inspector"), _nccl()),
        DEVICE_IDS,
        *_table(("named by", "for example", "is"), _devices()),
        OF_DEVICE_IDS,
        DCGM,
        *_table(("asked for by", "names"), _clients()),
        NOT_DCGM,
        *_table(("fields", "why"), _not_answered()),
        CHARTS,
        SERVING,
        *_table(("engine", "versions", "start it with"), _engines()),
        "",
        *_table(("figure", *(engine.title for engine in TOLD_APART.values())), _figures()),
        LUSTRE_HEAD.format(versions=" and ".join(LUSTRE)),
        *(f"`{metric}` of {version}: {why}." for metric, version, why in _lustre()),
        RDMA,
        *_table(("driver", *COUNTER_WORDS.values()), _rdma()),
        OF_OFED.format(lacks=", ".join(f"`{name}`" for name in sorted(old.lacks))),
        FIRST_TRY.format_map(Counter(one.fate for one in first_try())),
    ]
    return "\n".join(lines) + "\n"


def _table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def _nccl() -> Iterator[Row]:
    logs = tuple(each["version"] for each in load("nccl")["forms"])
    text = _versions("text")
    recorded = re.findall(r'"nccl_version": "([\d.]+)"', RAS_JSON.read_text())
    json = {*recorded, *_versions("json")}
    rows = []
    for minor in range(min(map(_number, logs))[1], NEWEST + 1):
        last = f"2.{minor}.99"
        no_ras = NONE if _number(last) < RAS_FROM else ""
        cells = (
            _read_as(last, logs),
            no_ras or _read_as(last, text),
            no_ras or _read_as(last, json) or NONE,
            _read_as(last, INSPECTORS) or NONE,
        )
        rows.append((f"2.{minor}", cells))
    for cells, alike in groupby(rows, lambda row: row[1]):
        versions = [version for version, _ in alike]
        yield " to ".join(dict.fromkeys((versions[0], versions[-1]))), *cells


def _versions(kind: str) -> set[str]:
    """The versions of NCCL in the names of the cases of every test of this kind of answer."""
    found: set[str] = set()
    for name, test in vars(tests.nccl.test_nccl).items():
        if name.startswith("test_") and kind in name.split("_"):
            for mark in getattr(test, "pytestmark", ()):
                found |= set(_named(mark))
    return found


def _named(mark: Any) -> Iterator[str]:
    if mark.name == "parametrize":
        cases = mark.kwargs.get("ids") or [case for case in mark.args[1] if isinstance(case, str)]
        for case in cases:
            yield from re.findall(r"\b2\.\d+(?:\.\d+)?\b", str(case))


def _read_as(version: str, forms: Iterable[str]) -> str:
    """That a version is read in its newest form, empty if there is none."""
    known = [form for form in forms if _number(form) <= _number(version)]
    return f"{READ} ({max(known, key=_number)})" if known else ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _devices() -> Iterator[Row]:
    told: dict[tuple[str, str], str] = {}
    named = {"gpu": "GPU", "instance": "MIG instance"}
    for each in load("devices")["devices"]:
        if each["is"] in named:
            told.setdefault((each["of"], named[each["is"]]), each["device"])
    for (of, what), device in told.items():
        yield of, f"`{device}`", what
    for each in load("devices")["unattributed"]:
        yield each["of"], f"`{each['device']}`", each["reason"]


def _clients() -> Iterator[Row]:
    for client in CLIENTS:
        yield f"[{client.name}]({client.source})", str(len(client.names))


def _not_answered() -> Iterator[Row]:
    """The fields of DCGM without a series, by the reason; of many, the first."""
    found: dict[str, list[str]] = {}
    for name, why in sorted(NOT_ANSWERED.items()):
        found.setdefault(why, []).append(f"`{name}`")
    for why, names in KINDS_NOT_ANSWERED.items():
        found.setdefault(why, []).extend(f"`{name}`" for name in names)
    for watch, why in WATCHES_NOT_ANSWERED.items():
        name = f'`DCGM_EXP_GPU_HEALTH_STATUS{{health_watch="{watch}"}}`'
        found.setdefault(why, []).append(name)
    for why, (first, *more) in found.items():
        yield f"{first} and {len(more)} more" if more else first, why


HAD = {
    "names and form retyped from the source": 1,
    "written by the package's own metrics code, without a GPU": 2,
    "captured from the program under a load, on a CPU": 3,
    "captured by its reporter, in the form of the source": 4,
}
"""How a page of the corpus was had, by its number in the document."""


def _engines() -> Iterator[Row]:
    pages = load("engines")["pages"]
    for name, engine in TOLD_APART.items():
        had: dict[str, dict[int, None]] = {}
        for page in pages:
            if page["engine"] == name:
                had.setdefault(page["version"], {})[HAD[page["had"]]] = None
        versions = (f"{version} ({', '.join(map(str, how))})" for version, how in had.items())
        flags = engine.flags if " " in engine.flags or not engine.flags else f"`{engine.flags}`"
        yield engine.title, ", ".join(versions), flags


def _figures() -> Iterator[Row]:
    for figure in FIGURES:
        cells = []
        for engine in TOLD_APART:
            names = [n for e in ENGINES if e.name == engine for n in e.names if n.figure is figure]
            shown = [_named_so(name) for name in names]
            cells.append(next(iter(shown), ""))
        yield figure.meaning, *cells


def _named_so(name: Alias) -> str:
    chosen = ", ".join(sorted(name.values))
    of = f", {name.label} {'other than ' if name.others else ''}{chosen}" if name.label else ""
    also = "".join(f" + `{more}`" for more in name.also)
    shown = f"`{name.theirs}`{of}{also}"
    return f"({shown})" if name.figure.kind == "times" else shown


def _lustre() -> Iterator[Row]:
    """The metrics that a version of the client lacks, and why."""
    golden = (MACHINES / "lustre/golden/lustre.txt").read_text()
    for metric in Lustre.metrics:
        for version, filesystem in LUSTRE.items():
            if not re.search(rf'^{metric.name}{{[^}}]*filesystem="{filesystem}"', golden, re.M):
                yield metric.name, version, LUSTRE_LACKS[version, metric.name]


def _rdma() -> Iterator[Row]:
    drivers = {name: of for name, of in DRIVERS.items() if name != "standard"}
    for driver, own in {**drivers, "cxi (HPE Slingshot)": CXI}.items():
        counters = {**own, **(STANDARD if driver in HAVE_STANDARD else {})}
        found = {of.what for of in counters.values() if of is not None}
        yield driver, *(READ if what in found else NONE for what in COUNTER_WORDS)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
