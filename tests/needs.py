"""What tests need and pip does not install: root, programs and libraries, and where to get them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = "make monitoring, with Go"

GET = {
    "promtool": "apt-get install prometheus, or make tools with Go",
    "amtool": "apt-get install prometheus-alertmanager, or make tools with Go",
    "prometheus": "apt-get install prometheus, or make .monitoring/prometheus with Go",
    "alertmanager": "apt-get install prometheus-alertmanager, or make .monitoring/alertmanager",
    "victoria-metrics": BUILT,
    "vmalert": BUILT,
    "pint": BUILT,
    **dict.fromkeys(
        ("helm", "kubectl", "etcd", "kube-apiserver", "kube-controller-manager"),
        "make kubernetes, with Go",
    ),
    **dict.fromkeys(("registry", "crane"), "make .monitoring/crane, with Go"),
    "actionlint": "make .monitoring/actionlint, with Go",
    "otelcol": "make .monitoring/otelcol, with Go",
    "bwrap": "apt-get install bubblewrap",
    **dict.fromkeys(("setpriv", "nsenter"), "apt-get install util-linux"),
    **{name: f"apt-get install {name}" for name in ("curl", "jq", "zsh", "fish")},
    "cc": "apt-get install gcc libc6-dev",
    "gdb": "apt-get install gdb-minimal",
    **dict.fromkeys(("g++", "unshare"), "apt-get install g++ util-linux"),
    "openssl": "apt-get install openssl",
    **dict.fromkeys(("ip", "tc"), "apt-get install iproute2"),
    "mpirun": "apt-get install openmpi-bin",
    "buildah": "apt-get install buildah",
    "mmdebstrap": "apt-get install mmdebstrap",
    "systemd-analyze": "apt-get install systemd",
    "torch": "apt-get install python3-torch",
    **dict.fromkeys(("lightning", "transformers"), "make .monitoring/training, with python3-torch"),
    "chromium": "apt-get install chromium",
    **dict.fromkeys(("pdftoppm", "pdftotext"), "apt-get install poppler-utils"),
    "node": "apt-get install nodejs",
    "hey": "apt-get install hey",
    "llama.cpp": "make .monitoring/llama",
    "@grafana/data": "make .monitoring/grafana, with npm",
    "grafana_foundation_sdk": "Python 3.11 or later",
}
"""Programs and libraries, and the command that gets each."""

MAX_REASON = 120
"""Characters of a reason that the last line has room for."""

ALL = "TESTS_NEED_ALL"
"""Environment variable: if set, as in CI, a missing program fails its tests, which else skip."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do what the test does")


def find(*names: str) -> str | None:
    """A program, as ``make monitoring`` built it or as it is installed."""
    where = f"{ROOT / '.monitoring'}{os.pathsep}{os.environ.get('PATH', '')}"
    return next((path for name in names if (path := shutil.which(name, path=where))), None)


def need(name: str, *also: str) -> str:
    """A program by one of its names; skips the test where it is not here."""
    found = find(name, *also)
    if found is None:
        pytest.skip(missing(name))
    return found


@functools.cache
def python_with(library: str) -> str | None:
    """A Python that has PyTorch and another library of training code."""
    probe = "import importlib.util as of, sys; sys.exit(not all(map(of.find_spec, sys.argv[1:])))"
    for python in (sys.executable, ROOT / ".monitoring/training/bin/python", "/usr/bin/python3"):
        if Path(python).exists():
            command = [python, "-c", probe, "torch", library]
            if subprocess.run(command, check=False).returncode == 0:
                return str(python)
    return None


def need_library(name: str) -> str:
    """A Python with a library of training code; skips the test where there is none."""
    found = python_with(name)
    if found is None:
        pytest.skip(missing(name))
    return found


def missing(name: str) -> str:
    """Why a test is skipped."""
    return f"{name} is not here: {GET[name]}"


def named(reasons: Iterable[str]) -> list[str]:
    """The programs and libraries for lack of which tests were skipped."""
    text = "\n".join(reasons)
    return [name for name in GET if re.search(rf"(?<![\w-]){re.escape(name)} is not here", text)]


def farewell(passed: int, failed: int, reasons: Iterable[str]) -> str:
    """The last line of a test run that could not run all: what ran, and why the rest did not."""
    why = Counter(
        reason.removeprefix("Skipped: ").splitlines()[0][:MAX_REASON] for reason in reasons
    )
    if not why:
        return ""
    ran = f"{passed} passed, {failed} failed" if failed else f"{passed} passed"
    lacking = "; ".join(f"{reason} ({count})" for reason, count in why.most_common())
    return f"{ran}, {why.total()} could not run: {lacking}"
