"""What holds on a real GPU: run on a machine that has one, with whatever works on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.gpu.ledger import STATES
from gpunode.node.tape import GPU_CALLS
from tests.conftest import scrape, values
from tests.daemon import daemon

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534

pytestmark = pytest.mark.integration


@cache
def ask(user: int) -> list[dict[str, Any]]:
    """Every answer of every GPU; skips the test where there is no driver or no GPU."""
    try:
        result = subprocess.run(
            [sys.executable, "-m", "tests.hardware.ask", "0"],
            cwd=REPOSITORY,
            user=None if user == os.geteuid() else user,
            group=None if user == os.geteuid() else user,
            extra_groups=None if user == os.geteuid() else [],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except PermissionError as error:
        pytest.skip(f"uid {user} may not run the Python of these tests: {error}")
    if "NVML error" in result.stderr and "Traceback" not in result.stderr:
        pytest.skip(f"no NVIDIA driver on this machine: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    gpus = list(json.loads(result.stdout))
    if not gpus:
        pytest.skip("the NVIDIA driver of this machine has no GPU")
    return gpus


@pytest.fixture(params=["ourselves", "nobody"])
def gpus(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The GPUs as this user sees them, and as one without any privilege does."""
    if request.param == "ourselves":
        return ask(os.geteuid())
    ask(os.geteuid())
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return ask(NOBODY)


def test_every_reading_answers_or_is_unsupported(gpus: list[dict[str, Any]]) -> None:
    for gpu in gpus:
        assert gpu.keys() == {*GPU_CALLS, "identity"}
        errors = [a for a in gpu.values() if isinstance(a, dict) and "error" in a]
        assert [error for error in errors if error["error"] != "Unsupported"] == []


def test_readings_are_plausible_in_base_units(gpus: list[dict[str, Any]]) -> None:
    for gpu in gpus:
        if gpu["identity"]["mig"]:
            continue
        assert 5 < gpu["power"] < 2500
        assert 1e9 < gpu["memory"]["total"] < 1e12
        assert 0 <= gpu["memory"]["used"] <= gpu["memory"]["total"]
        assert 1e8 < gpu["sm_clock"] < 5e9
        assert 10 < gpu["temperature"] < 110
        assert 0 <= gpu["utilization"]["gpu"] <= 1
        assert gpu["power_limits"]["enforced"] < 2500
        assert all(5 < watts < 2500 for _, watts in gpu["power_samples"]["samples"])


def test_an_unprivileged_user_reads_as_much_as_root() -> None:
    everything = ask(os.geteuid())
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for ours, theirs in zip(everything, ask(NOBODY), strict=True):
        assert {c for c in GPU_CALLS if is_error(theirs[c])} == {
            c for c in GPU_CALLS if is_error(ours[c])
        }


def is_error(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


def test_the_daemon_accounts_for_every_gpu() -> None:
    known = [gpu for gpu in ask(os.geteuid()) if gpu["mig_mode"] is not True]
    with daemon("--gpu.interval=0.5") as running:
        for place, gpu in enumerate(known):
            begin, before, _ = running.next_window(place)
            for _ in range(4):
                end, after, window = running.next_window(place)
            grown = {state: after[state] - before[state] for state in STATES}
            assert sum(grown.values()) == pytest.approx(end - begin, rel=0.01, abs=0.1)
            if gpu["processes"] == [] and window["sensors"]["gpm"]:
                assert grown["free"] == pytest.approx(end - begin, rel=0.01, abs=0.1)
        series = scrape(running)
    assert values(series, "gpunode_source_up", source="gpu") == [1]
    for gpu in known:
        uuid = gpu["identity"]["uuid"]
        assert values(series, "gpunode_source_up", source="gpu_activity", uuid=uuid) == [1]
        assert len(values(series, "gpunode_gpu_power_watts", **gpu_labels(gpu))) == 1


def gpu_labels(gpu: dict[str, Any]) -> dict[str, str]:
    return {"uuid": gpu["identity"]["uuid"]}
