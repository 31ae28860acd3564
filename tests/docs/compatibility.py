"""Which versions and forms of others' programs are read: from the tables of the tests of each.

python -m tests.docs.compatibility docs/compatibility.md
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import tests.nccl.test_nccl
from gpunode.host.lustre import Lustre
from gpunode.host.rdma_counters import CXI, DRIVERS, MLX5, STANDARD, What
from gpunode.serving.engines import ENGINES, FIGURES, Name
from helm.generate import REFUSED
from tests.export.dcgm_clients import (
    CLIENTS,
    KINDS_NOT_ANSWERED,
    NOT_ANSWERED,
    WATCHES_NOT_ANSWERED,
)
from tests.helm.test_intentions import EXPRESSED
from tests.holders.test_owners import DEVICES, UNATTRIBUTED
from tests.machine import MACHINES
from tests.nccl.test_inspector import INSPECTORS

READ = "✓"
NOT_ASKED = ""

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
        "ask a real Prometheus for each name, with the labels that each entry of this list "
        "selects and groups by. Each field that DCGM 4.6 (dcgm-exporter 4.8.4) renamed has a "
        "series under both names; the table has the new ones of the last entry, and otherwise the "
        "old.",
        "",
        *(f"{at}. [{client.name}]({client.source})" for at, client in enumerate(CLIENTS, 1)),
        "",
        *_table(("metric", *map(str, range(1, len(CLIENTS) + 1))), _dcgm()),
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
        "takes it (`tests/helm/intentions`).",
        "",
        *_table(("values", "where the tests look", "what is there", ""), _intentions()),
        "",
        "Refused, with the reason:",
        "",
        *_table(("value", "why, and what instead"), _refused()),
        "",
        "## Inference engines",
        "",
        "What each engine calls the figures of [serving.md](serving.md). Of several names, the "
        "first that a page has is read; what stands after a `+` is added. Through Ray or "
        "OpenTelemetry, `:` may be `_`, and `ray_` may come before. A name in brackets is a "
        "histogram's. llama.cpp's server (b11549) runs in a test, under a load, on a CPU. No "
        "engine of this table was run on a GPU, llama.cpp with CUDA neither: packages with CUDA "
        "were larger than what could be brought to the GPUs at hand. What ran on them is an "
        "engine of the tests' own with vLLM's names ([performance.md](performance.md)). Of the "
        "pages that the others read (`tests/serving/pages`), those of vLLM 0.33, SGLang 0.5.23 "
        "and LMDeploy 0.18 were written by the metrics code of these packages, and `python -m "
        "tests.serving.write_pages` writes them again; the names were compared with the packages "
        "of vLLM 0.6.6, 0.11 and 0.16, SGLang 0.3.6 to 0.5.20 (14 of them), LMDeploy 0.10 and "
        "Ray 2.60. The other pages were written from the sources below, and other ends of ranges "
        "are estimates.",
        "",
        *_table(("engine", "versions", "start it with", "names from"), _engines()),
        "",
        *_table(("figure", *(engine.title for engine in ENGINES)), _figures()),
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
    ]
    return "\n".join(lines) + "\n"


def _table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def _nccl() -> Iterator[Row]:
    logs = tuple(tests.nccl.test_nccl.FORMS)
    text = _versions("text")
    recorded = re.findall(r'"nccl_version": "([\d.]+)"', RAS_JSON.read_text())
    json = {*recorded, *_versions("json")}
    for minor in range(min(map(_number, logs))[1], NEWEST + 1):
        last = f"2.{minor}.99"
        no_ras = "no RAS service" if _number(last) < RAS_FROM else ""
        yield (
            f"2.{minor}",
            _read_as(last, logs),
            no_ras or _read_as(last, text),
            no_ras or _read_as(last, json) or "in text only",
            _read_as(last, INSPECTORS) or "no Inspector",
        )


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
    for of, device, gpu, instance in DEVICES:
        if gpu or instance:
            told.setdefault((of, "a GPU" if gpu else "a MIG instance"), device)
    for (of, what), device in told.items():
        yield of, f"`{device}`", f"{READ} {what}"
    for of, device, reason in UNATTRIBUTED:
        yield of, f"`{device}`", reason


def _dcgm() -> Iterator[Row]:
    names = sorted({name for client in CLIENTS for name in client.names})
    for name in names:
        cell = "no" if name in NOT_ANSWERED else READ
        yield f"`{name}`", *(cell if name in client.names else NOT_ASKED for client in CLIENTS)


def _intentions() -> Iterator[Row]:
    for one in EXPRESSED:
        if one.values:
            kind, *steps = one.place
            place = "".join(f"[{s}]" if s.lstrip("-").isdigit() else f".{s}" for s in steps)
            found = "nothing" if one.expected is None else f"`{_in_a_line(one.expected)}`"
            said = f"`{_in_a_line(one.values)}`"
            yield said, f"{kind} `{place}`", found, f"[source]({one.source})"


def _in_a_line(one: Any) -> str:
    """A value in YAML."""
    written = yaml.safe_dump(one, default_flow_style=True, width=math.inf)
    return written.removesuffix("...\n").strip()


def _refused() -> Iterator[Row]:
    return ((f"`{name}`", why) for name, why in REFUSED.items())


def _engines() -> Iterator[Row]:
    for engine in ENGINES:
        sources = ", ".join(f"[{at}]({source})" for at, source in enumerate(engine.sources, 1))
        flags = engine.flags if " " in engine.flags or not engine.flags else f"`{engine.flags}`"
        yield engine.title, engine.versions, flags, sources


def _figures() -> Iterator[Row]:
    for figure in FIGURES:
        cells = []
        for engine in ENGINES:
            names = [name for name in engine.names if name.figure is figure]
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
