"""The fake driver for every test that wants one, and how to look at what a daemon exports."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import hypothesis
import pluggy
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpunode.helper import capability
from gpunode.loop.metrics import READ_SECONDS
from gpunode.loop.watch import Watch
from tests import needs, strict
from tests.daemon import TIMEOUT, Daemon, daemon
from tests.fakes.nvml import FakeDriver, build

if TYPE_CHECKING:
    from playwright.sync_api import Browser

T = TypeVar("T")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# Images of Python often forbid it to keep what it compiled. Then each of hundreds of processes
# compiles gpunode for itself, and starts in twice the time.
# https://docs.python.org/3/using/cmdline.html#envvar-PYTHONDONTWRITEBYTECODE
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs in Go that tests start live for seconds: to collect their garbage less often saves a
# third of their time, for memory that they give back. https://go.dev/doc/gc-guide#GOGC
os.environ.setdefault("GOGC", "400")

# A shell that starts tests in the background has them ignore SIGINT, and so whatever they start:
# https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_11
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

INTERVAL = 0.5
"""Seconds a window in these tests: the shortest there is."""

OFTEN = (f"--gpu.interval={INTERVAL}", "--gpu.health-interval=1", "--discovery.interval=0.3")
"""Options of a daemon that looks at everything as often as it can."""


ATTACKS = Path(__file__).with_name("attacks")
"""The folder of what ``make attacks`` runs, as it does whatever else is marked so."""

farewell = pytest.StashKey[str]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """Fail, where all checks are to run, a test that a missing program would have skipped."""
    report = (yield).get_result()
    if report.skipped and os.environ.get(needs.ALL) and needs.named([str(report.longrepr)]):
        report.outcome = "failed"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, pluggy.Result[pytest.CollectReport], None]:
    """Leave out, on Python 3.10, the files that need what writes the dashboards."""
    report = (yield).get_result()
    lacking = "grafana_foundation_sdk"
    why = f"No module named '{lacking}'"
    if report.failed and why in str(report.longrepr) and not os.environ.get(needs.ALL):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {needs.missing(lacking)}")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Attacks and whole systems often wait; of quick tests, a worker more is another collection."""
    cores = os.cpu_count() or 1
    return cores + {"attack": 2, "integration": 1}.get(config.option.markexpr.split(" ")[0], 0)


SLOWEST = (
    *("test_incidents.py", "test_scenarios.py", "test_image.py", "test_alerts.py"),
    *("test_truth.py", "test_dcgm.py", "test_chart.py", "test_doctor.py"),
    *("test_chart_cluster.py", "test_fleet.py", "test_job.py", "test_demo.py", "test_options.py"),
)
"""What takes longest begins first, so that nothing waits for it in the end."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the attacks and what runs nightly, and begin with what takes longest."""
    cases: Counter[str] = Counter()
    for item in items:
        if ATTACKS in item.path.parents:
            item.add_marker("attack")
        if sweep := item.get_closest_marker("sweep"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % sweep.args[0]:
                item.add_marker("nightly")
            cases[test] += 1
    items.sort(key=lambda item: item.path.name not in SLOWEST)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    passed, failed, error, skipped = (
        terminalreporter.getreports(outcome) for outcome in ("passed", "failed", "error", "skipped")
    )
    why = {report.nodeid: report.longrepr[2] for report in skipped}  # a file's comes of each worker
    config.stash[farewell] = needs.farewell(len(passed), len(failed) + len(error), why.values())


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last of all what ran and what could not."""
    if said := config.stash.get(farewell, ""):
        print(said)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright  # its import takes half a second

    executable = needs.need("chromium")
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=executable, args=sandbox)
        yield started
        started.close()


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """A command that quietens the log, run in this process, does so for its own test alone."""
    yield
    logging.getLogger("gpunode").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def capabilities() -> Iterator[None]:
    """A command that lowers its capabilities in this process does so for its own test alone."""
    header, before = capability.sets()
    yield
    capability.call(capability.libc.capset, header, before)


@pytest.fixture(autouse=True, scope="session")
def strict_sources() -> Iterator[None]:
    """No test lets a source export what it does not declare, or fail in a way of our own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Watch, "step", strict.step)
        patched.setattr("gpunode.loop.complaints.complain", strict.complain)
        yield


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake driver as new as an H200's."""
    return build(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture(scope="session")
def old_fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake driver from before GPM."""
    return build(tmp_path_factory.mktemp("old-driver"), gpm=False).parent


@pytest.fixture
def fake(fake_library: Path, tmp_path: Path) -> FakeDriver:
    return FakeDriver(fake_library, tmp_path / "nvml.script")


@pytest.fixture
def old_fake(old_fake_library: Path, tmp_path: Path) -> FakeDriver:
    return FakeDriver(old_fake_library, tmp_path / "nvml.script")


def watching(fake: FakeDriver, *options: str) -> AbstractContextManager[Daemon]:
    """A daemon on a fake driver that reads everything as often as it can."""
    return daemon(*OFTEN, *options, environment={**os.environ, **fake.environment()})


def parse(exposition: str) -> Series:
    """Every series by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def scrape(running: Daemon) -> Series:
    """What ``/metrics`` says now."""
    return parse(running.get("/metrics").decode())


def values(series: Series, name: str, **labels: str) -> list[float]:
    """The values of all series of that name that carry these labels."""
    wanted = labels.items()
    return [v for (found, have), v in series.items() if found == name and wanted <= have]


def by_label(series: Series, name: str, label: str, **labels: str) -> dict[str, float]:
    """The series of that name that carry these labels, by another label of theirs."""
    wanted = labels.items()
    return {
        dict(have)[label]: v
        for (found, have), v in series.items()
        if found == name and wanted <= have
    }


def read_again(served: Daemon, source: str, times: int) -> None:
    """Return once a source has been read so many times more."""
    seen = set[tuple[float, ...]]()

    def told() -> bool:
        seen.add(tuple(values(scrape(served), READ_SECONDS.name, source=source)))
        return len(seen) > times

    until(told)


def until(predicate: Callable[[], T | None], timeout: float = TIMEOUT) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s"
        time.sleep(0.1)
    return answer
