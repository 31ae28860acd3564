"""Which versions and forms of others' programs are read: from the tables of the tests of each.

python -m tests.docs.compatibility docs/compatibility.md
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

import tests.nccl.test_nccl
from gpunode.host.lustre import Lustre
from gpunode.host.rdma_counters import CXI, DRIVERS, MLX5, STANDARD, What
from gpunode.serving.engines import ENGINES, FIGURES, Name
from helm.generate import REFUSED
from tests.corpus.families import first_try, load
from tests.export.dcgm_clients import (
    CLIENTS,
    KINDS_NOT_ANSWERED,
    NOT_ANSWERED,
    WATCHES_NOT_ANSWERED,
)
from tests.helm.test_intentions import EXPRESSED
from tests.machine import MACHINES
from tests.nccl.test_inspector import INSPECTORS

READ = "✓"

NEWEST = 30
"""The newest minor version of NCCL 2 whose source the forms were held against."""

RAS_FROM = (2, 24)
"""NCCL's first version with its RAS service."""

RAS_JSON = tests.nccl.test_nccl.LOGS / "h200x2_hang_ras_json.txt"

LUSTRE = {"2.12 (`/proc`)": "scratch", "2.16 (debugfs)": "a361000"}
"""The filesystems of tests/machines/lustre by the version of the client."""

LUSTRE_LACKS = {
    ("2.12 (`/proc`)", "gpunode_lustre_operation_seconds_total"): "the client counts operations, "
    "and not their time, before 2.14",
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

TOLD: Mapping[What, str] = {
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


def document() -> str:
    """The document."""
    lines = [
        "# Compatibility",
        "",
        "Generated from the tables of the tests by `make docs`; do not edit. Every ✓ is a case "
        "that a test tries. Its input comes from the program itself or from its source.",
        "",
        "## NCCL",
        "",
        "A log (`NCCL_DEBUG_FILE`) has communicators, transports and warnings. The RAS service "
        "knows the rank that a collective waits for. The Inspector plug-in "
        "(`NCCL_INSPECTOR_DUMP_DIR`) writes what each collective took. Each version is read in the "
        "form of the version in brackets.",
        "",
        *_table(("version", "log", "RAS, text", "RAS, JSON", "Inspector"), _nccl()),
        "",
        "## Device IDs",
        "",
        "The kubelet's pod-resources API names GPUs, and shares of GPUs, in these ways.",
        "",
        *_table(("named by", "for example", "is"), _devices()),
        "",
        "A claim of a MIG instance names the instance's profile and place. If the driver does not "
        "report these, the claim adds no `gpunode_gpu_allocated` for the instance. HAMi before 2.9 "
        "may give a container another GPU than that of its slot; the owners of processes "
        '(`via="process"`) are always right.',
        "",
        "## dcgm-exporter",
        "",
        "`--compat=dcgm` exports its metrics: those of its default set, and those that public "
        "dashboards, rules and programs ask for. The tests run KempnerPulse and jobscope, and "
        "ask a real Prometheus for each name, with the labels that each of these selects and "
        "groups by. Each field that DCGM 4.6 and 4.7 (dcgm-exporter 4.8.4 and 4.9.0) renamed has a "
        "series under both names, the new one in its own unit. `DCGM_FI_DEV_GPU_UTIL_RATIO` is "
        "from 0 to 1, as in 4.7, and not in percent, as in 4.6.",
        "",
        *_table(("asked for by", "names", "without a series"), _clients()),
        "",
        "All names that are answered:",
        "",
        *_dcgm(),
        "",
        "No series:",
        "",
        *(f"- `{name}`: {reason}" for name, reason in sorted(NOT_ANSWERED.items())),
        *(
            f"- {reason}: {', '.join(f'`{name}`' for name in names)}"
            for reason, names in KINDS_NOT_ANSWERED.items()
        ),
        *(
            f'- `DCGM_EXP_GPU_HEALTH_STATUS{{health_watch="{watch}"}}`: {reason}'
            for watch, reason in WATCHES_NOT_ANSWERED.items()
        ),
        "",
        "A sensor that a GPU lacks has no series either. `Hostname` and `hostname`, as "
        "dcgm-exporter calls it after 4.8, are `web.node-name`, the variable `NODE_NAME`, or else "
        "the name of the host; `hpc_job` is the Slurm job. A MIG instance has the card's `UUID` "
        "and `modelName`, and `GPU_I_ID` and `GPU_I_PROFILE`. `nvidia_gpu_jobId` and "
        "`nvidia_gpu_duty_cycle` are those of "
        "[jobstats](https://github.com/PrincetonUniversity/jobstats), to which jobscope joins.",
        "",
        "## Values of other exporters' charts",
        "",
        "What sites set in the charts of dcgm-exporter, node_exporter and others, as this chart "
        "takes it, and the part of an object in which a test finds it (`tests/helm/intentions`).",
        "",
        *_table(("values", "of", ""), _intentions()),
        "",
        "Refused, with the reason:",
        "",
        *_table(("value", "why, and what instead"), _refused()),
        "",
        "## Inference engines",
        "",
        "What each engine calls the figures of [serving.md](serving.md). Of several names, the "
        "first that a page has is read; what stands after a `+` is added, and without it there is "
        "no figure. Through Ray or OpenTelemetry, `:` may be `_`, and `ray_` may come before. A "
        "name in brackets is a histogram's.",
        "",
        "The versions are those of which the tests have a page (`tests/corpus/engines.yaml`); of "
        "others, a page that has a known name is read, and a part that is not known is "
        "[unread](unread.md). llama.cpp's server (b11549) runs in a test, under a load, on a CPU. "
        "None of them was run on a GPU: what ran there is an engine of the tests' own with vLLM's "
        "names ([performance.md](performance.md)).",
        "",
        *_table(("engine", "versions", "its pages", "start it with"), _engines()),
        "",
        *_table(("figure", *(engine.title for engine in TOLD_APART.values())), _figures()),
        "",
        "## Lustre",
        "",
        *_table(("metric", *(f"client {version}" for version in LUSTRE)), _lustre()),
        "",
        "## OFED",
        "",
        "Counters of mlx5 adapters in `hw_counters/`; those in `counters/` are the same in all.",
        "",
        *_table(("counter", *(adapter.name for adapter in OFED)), _ofed()),
        "",
        "## RDMA adapters",
        "",
        "What the counters of each driver tell, in `counters/` or `hw_counters/`. A counter that "
        "is not known counts in `gpunode_unread_total`.",
        "",
        *_table(("driver", *TOLD.values()), _rdma()),
        "",
        "## At the first try",
        "",
        "Ninety samples from public reports that the readers were not written from, fifteen of "
        "each kind (`tests/corpus/fresh.yaml`), before anything was mended for them. What is "
        "unread is counted as such; since then, nothing of them is read wrongly or dropped. Of "
        "the last thirty, found by somebody who had seen no reader, 22 were right, 2 unread, 5 "
        "wrong and 1 dropped; those 5 expected what gpunode leaves out on purpose.",
        "",
        *_table(("samples", "right", "unread", "wrong", "dropped"), _first_try()),
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
        no_ras = "no RAS service" if _number(last) < RAS_FROM else ""
        cells = (
            _read_as(last, logs),
            no_ras or _read_as(last, text),
            no_ras or _read_as(last, json) or "in text only",
            _read_as(last, INSPECTORS) or "no Inspector",
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
    named = {"gpu": "a GPU", "instance": "a MIG instance"}
    for each in load("devices")["devices"]:
        if each["is"] in named:
            told.setdefault((each["of"], named[each["is"]]), each["device"])
    for (of, what), device in told.items():
        yield of, f"`{device}`", f"{READ} {what}"
    for each in load("devices")["unattributed"]:
        yield each["of"], f"`{each['device']}`", each["reason"]


def _clients() -> Iterator[Row]:
    for client in CLIENTS:
        without = [f"`{name}`" for name in client.names if name in NOT_ANSWERED]
        yield f"[{client.name}]({client.source})", str(len(client.names)), ", ".join(without)


def _dcgm() -> Iterator[str]:
    """The names of all that are answered, by how they begin."""
    names = sorted({name for client in CLIENTS for name in client.names} - NOT_ANSWERED.keys())
    begins = re.compile(r"DCGM_(?:FI_(?:DEV|PROF|DRIVER)|EXP)_|nvidia_|")
    for begin, of in groupby(names, lambda name: begins.match(name)[0]):  # type: ignore[index]
        rest = ", ".join(f"`{name.removeprefix(begin)}`" for name in of)
        yield f"- {f'`{begin}`…: ' if begin else ''}{rest}"


def _intentions() -> Iterator[Row]:
    for one in EXPRESSED:
        if one.values:
            said = f"`{_in_a_line(one.values)}`"
            nothing = "left out" if one.expected is None else ""
            yield said, f"{one.place[0]}{nothing and ': '}{nothing}", f"[source]({one.source})"


def _in_a_line(one: Any) -> str:
    """A value in YAML."""
    written = yaml.safe_dump(one, default_flow_style=True, width=math.inf)
    return written.removesuffix("...\n").strip()


def _refused() -> Iterator[Row]:
    return ((f"`{name}`", why) for name, why in REFUSED.items())


def _engines() -> Iterator[Row]:
    pages = load("engines")["pages"]
    for name, engine in TOLD_APART.items():
        of = [page for page in pages if page["engine"] == name]
        versions = dict.fromkeys(page["version"] for page in of)
        had: dict[str, dict[str, None]] = {}
        for page in of:
            had.setdefault(page["had"], {})[page["source"]] = None
        links = "; ".join(
            f"{how}: {', '.join(f'[{at}]({source})' for at, source in enumerate(sources, 1))}"
            for how, sources in had.items()
        )
        flags = engine.flags if " " in engine.flags or not engine.flags else f"`{engine.flags}`"
        yield engine.title, ", ".join(versions), links, flags


def _first_try() -> Iterator[Row]:
    fates = ("right", "unread", "wrong", "silent")
    counts: dict[str, Counter[str]] = {}
    for one in first_try():
        counts.setdefault(one.entry.partition(":")[0], Counter())[one.fate] += 1
    counts["all"] = sum(counts.values(), Counter())
    for kind, of in counts.items():
        yield kind, *(str(of[fate]) for fate in fates)


def _figures() -> Iterator[Row]:
    for figure in FIGURES:
        cells = []
        for engine in TOLD_APART:
            names = [n for e in ENGINES if e.name == engine for n in e.names if n.figure is figure]
            shown = [_named_so(name) for name in names]
            cells.append("<br>".join(dict.fromkeys(shown)))
        yield figure.meaning, *cells


def _named_so(name: Name) -> str:
    chosen = ", ".join(sorted(name.values))
    of = f", {name.label} {'other than ' if name.others else ''}{chosen}" if name.label else ""
    also = "".join(f" + `{more}`" for more in name.also)
    shown = f"`{name.theirs}`{of}{also}"
    return f"({shown})" if name.figure.kind == "times" else shown


def _lustre() -> Iterator[Row]:
    golden = (MACHINES / "lustre/golden/lustre.txt").read_text()
    for metric in Lustre.metrics:
        cells = []
        for version, filesystem in LUSTRE.items():
            found = re.search(rf'^{metric.name}{{[^}}]*filesystem="{filesystem}"', golden, re.M)
            cells.append(READ if found else LUSTRE_LACKS[version, metric.name])
        yield f"`{metric.name}`", *cells


def _ofed() -> Iterator[Row]:
    for name in OF_MLX5:
        yield (
            f"`{name}`",
            *("the driver has none" if name in adapter.lacks else READ for adapter in OFED),
        )


def _rdma() -> Iterator[Row]:
    drivers = {name: of for name, of in DRIVERS.items() if name != "standard"}
    for driver, own in {**drivers, "cxi (HPE Slingshot)": CXI}.items():
        counters = {**own, **(STANDARD if driver in HAVE_STANDARD else {})}
        found = {of.what for of in counters.values() if of is not None}
        yield driver, *(READ if what in found else "it has none" for what in TOLD)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
