"""Runs benchmarks: ``python -m bench``, and the names of their groups."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.report import DOCS, Report, render

RESULTS = Path(os.environ.get("BENCH_RESULTS", DOCS / "performance"))


def gpu() -> Iterator[tuple[str, Report]]:
    """On one GPU: how accurate the ledger is, and what the daemon disturbs."""
    from bench import gpu

    yield "2-gpu-ledger", gpu.ledger(8.0, RESULTS)
    yield "3-gpu-square-wave", gpu.square_wave(40.0)
    yield "4-gpu-disturbance", gpu.disturbance(5, 5.0)
    yield "23-gpu-energy", gpu.energy(20.0)


def gpus() -> Iterator[tuple[str, Report]]:
    """On several GPUs: what the daemon costs, disturbs and reports while NCCL runs."""
    from bench import census, gpu

    yield "5-gpus-cost", gpu.cost(60.0)
    yield "6-gpus-disturbance", gpu.disturbance(5, 4.0)
    yield "11-gpus-jobs", gpu.jobs()
    yield "19-census", census.census()


def truth() -> Iterator[tuple[str, Report]]:
    """On GPUs: the ledger and the verdicts on real jobs, whose every kernel is traced.

    ``TRUTH_WORKLOADS`` names a part of them, with commas between names. Outcomes are kept among the
    results, and each report is of all outcomes on GPUs of a model.
    """
    from bench.truth import outcome, report, workloads

    names = filter(None, os.environ.get("TRUTH_WORKLOADS", "").split(","))
    outcome.measure(RESULTS, workloads.chosen(list(names)))
    for path in sorted(RESULTS.glob("truth-*.jsonl")):
        model = path.stem.removeprefix("truth-")
        yield f"14-truth-{model}", report.report(model, outcome.load(path))


def hangs() -> Iterator[tuple[str, Report]]:
    """On two GPUs or more, as root: how soon and how well it is told where a job hangs.

    ``HANGS`` names a part of the ways to hang, with commas between names. Outcomes are kept among
    the results, and the report is of all.
    """
    from bench.hangs import bench

    names = filter(None, os.environ.get("HANGS", "").split(","))
    yield "28-hangs", bench.hangs(RESULTS / "hangs.jsonl", list(names))


def nodes() -> Iterator[tuple[str, Report]]:
    """On two GPUs, as root with ip and tc: which GPU and which host is slow."""
    from bench import fabric, neighbour

    with tempfile.TemporaryDirectory() as folder:
        yield "30-neighbour", neighbour.neighbour(Path(folder))
    yield "31-fabric", fabric.fabric()


def anywhere() -> Iterator[tuple[str, Report]]:
    """Without a GPU: the recorded incidents, and the cost over the fake driver."""
    from bench import offline, page

    yield "1-tapes", offline.ledger()
    yield "7-memory", offline.memory()
    yield "8-scrapes", offline.scrapes()
    yield "9-node", offline.node()
    yield "10-jobs", offline.jobs()
    yield "16-page", page.page()


def peers() -> Iterator[tuple[str, Report]]:
    """Beside nvitop-exporter and node_exporter, which ``make peers`` installs, in eight minutes.

    Without a GPU; ``PEERS=here`` measures on those of this machine.
    """
    from bench import peers

    here = os.environ.get("PEERS") == "here"
    yield "0-peers-here" if here else "0-peers", peers.peers()


def ledger() -> Iterator[tuple[str, Report]]:
    """Without a GPU: the ledger and the verdicts on recorded programs, traced kernel by kernel."""
    from bench import ledger

    yield "22-ledger", ledger.report()


def gain() -> Iterator[tuple[str, Report]]:
    """Without a GPU: what the daemon said that fixes give, of the pairs that were measured."""
    from bench.truth import gains

    yield "21-gain", gains.report(gains.load())


def soak() -> Iterator[tuple[str, Report]]:
    """Without a GPU: a day beside a hostile tenant, which takes minutes to play."""
    from bench import soak

    yield "13-soak", soak.soak()


def review() -> Iterator[tuple[str, Report]]:
    """Without a GPU: the capacity report on a fleet, whose past takes minutes to write."""
    from bench import review

    yield "17-review", review.review()


def forecasts() -> Iterator[tuple[str, Report]]:
    """Without a GPU: the report's forecasts against simulated fleets, in some minutes."""
    from bench import forecasts

    yield "25-forecasts", forecasts.forecasts()


def updates() -> Iterator[tuple[str, Report]]:
    """Without a GPU: what the report says that changes of versions did, in a minute."""
    from bench import updates

    yield "27-updates", updates.updates()


def serving() -> Iterator[tuple[str, Report]]:
    """On GPUs: what holds an inference engine up, in some eight minutes; four GPUs for all of it.

    ``SERVING`` names situations, and ``SERVING_RUNS`` says how often each is played.
    """
    from bench.serving import bench

    names = filter(None, os.environ.get("SERVING", "").split(","))
    runs = int(os.environ.get("SERVING_RUNS", "1"))
    yield "29-serving", bench.serving(RESULTS / "serving.jsonl", list(names), runs)


def image() -> Iterator[tuple[str, Report]]:
    """Without a GPU: the image, built and run; root only."""
    from bench import image

    yield "18-image", image.image()


def release() -> Iterator[tuple[str, Report]]:
    """Without a GPU: a release, made twice and compared, in some minutes; root only."""
    from bench import release

    yield "32-release", release.release()


def helpers() -> Iterator[tuple[str, Report]]:
    """Without a GPU: what it costs to read through a helper; root only."""
    from bench import helper

    yield "24-helpers", helper.helpers()


def repository() -> Iterator[tuple[str, Report]]:
    """Without a GPU: what the repository costs who works in it; takes as long as ``make test``."""
    from bench import repository

    yield "36-repository", repository.repository()


def steadiness() -> Iterator[tuple[str, Report]]:
    """Without a GPU: how often verdicts change while the same goes on, in a minute."""
    from bench import steadiness

    yield "37-steadiness", steadiness.steadiness()


GROUPS = {
    group.__name__.replace("_", "-"): group
    for group in (
        *(peers, gpu, gpus, truth, hangs, nodes, anywhere, ledger, gain, soak, review, forecasts),
        *(serving, updates, image, release, helpers, steadiness, repository),
    )
}


def _about(group: Callable[[], object]) -> str:
    return (inspect.getdoc(group) or "").replace("\n\n", "\n").replace("\n", "\n" + " " * 12)


def main() -> None:
    """Run the named groups, print and keep their results; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures, and writes docs/performance.md.",
        epilog="\n".join(f"{name:12}{_about(group)}" for name, group in GROUPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("group", nargs="*", choices=GROUPS, default="anywhere", metavar="GROUP")
    groups = parser.parse_args().group
    met = True
    for name in [groups] if isinstance(groups, str) else groups:
        for result, report in GROUPS[name]():
            report.save(result, RESULTS)
            report.print()
            met = met and all(figure.met for figure in report.results)
    (DOCS / "performance.md").write_text(render())
    sys.exit(not met)


if __name__ == "__main__":
    main()
