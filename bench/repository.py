"""What the repository costs who works in it: its lines, its tests, its checks and its start."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from bench.report import Report, Result, machine
from tests.needs import ROOT

GENERATED = re.compile(
    r"dashboards/json/|docs/figures/|docs/(metrics|settings|thresholds|compatibility|performance)\.md"
    r"|docs/openapi\.json|docker/\w+\.txt|values\.schema\.json|package-lock\.json|_pb2\.pyi?"
)
"""What a command of the Makefile writes."""

CAPTURED = re.compile(
    r"tests/(machines|windows|tapes)/(?!.*\.py$)|docs/performance/"
    r"|tests/.*\.(txt|jsonl?|log|gz|prom)$|tests/corpus/.*\.yaml"
)
"""What was read on real nodes, or printed by real programs, or measured."""

CHANGED = "exporter/gpunode/verdict/judge.py"
"""A file as most fixes change it, for the hooks before a commit."""

BEFORE = {
    "lines by hand": "93,763",
    "lines of tests and benches by hand": "98,389",
    "lines generated": "63,640, and 47,167 of copies",
    "lines captured": "23,929",
    "lines in all": "326,888",
    "tests of `make test`": "10,600",
    "tests of `.ci/run`": "13,229 collected",
    "collection, CPU of a process": "83 s",
    "`make test`, CPU": "1,500 s",
    "hooks of a fix": "75 s",
    "`gpunode --version`": "0.71 s, 56 MiB",
    "`gpunode --help`": "0.74 s",
    "`pip install gpunode[exporter]`": "33 packages, 80 MB",
}
"""The figures before the repository was made lighter, at 3ed49b82."""


def lines() -> Counter[str]:
    """Tracked lines of text by kind; a link to a file is none."""
    found: Counter[str] = Counter()
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        content = b"" if path.is_symlink() else path.read_bytes()
        if b"\0" in content:
            continue
        if GENERATED.search(name):
            kind = "generated"
        elif CAPTURED.search(name):
            kind = "captured"
        else:
            tests = name.startswith(("tests/", "bench/"))
            kind = "of tests and benches by hand" if tests else "by hand"
        found[kind] += content.count(b"\n")
    return found


def cpu(command: Sequence[str], quiet: bool = True) -> tuple[float, float, str]:
    """CPU seconds of a command with its children, its seconds, and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    out = subprocess.PIPE if quiet else None
    ran = subprocess.run(command, cwd=ROOT, stdout=out, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ran.stdout}")
    took = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, took, ran.stdout or ""


def hooks() -> list[Sequence[str]]:
    """The commands that run before a fix of one file is committed."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    listed = [
        hook
        for hook in config["repos"][0]["hooks"]
        if hook["language"] == "system" and re.search(hook.get("files", ""), CHANGED)
    ]
    files = {True: "", False: f" {CHANGED}"}
    return [["sh", "-c", hook["entry"] + files["pass_filenames" in hook]] for hook in listed]


def start(option: str) -> tuple[float, float]:
    """Seconds, the least of five, and MiB of a command of the installed program."""
    program = str(Path(sys.executable).parent / "gpunode")
    measure = (
        "import resource, subprocess, sys, time\n"
        "began = time.monotonic()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "took = time.monotonic() - began\n"
        "print(took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
    )
    command = [sys.executable, "-c", measure, program, option]
    seen = [
        tuple(map(float, subprocess.check_output(command, text=True).split())) for _ in range(5)
    ]
    took, memory = min(seen)
    return took, memory


def installed() -> tuple[int, float]:
    """Packages and MB of the daemon's installation, pip's own apart."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "site"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"--target={target}", f"{ROOT}[exporter]"], check=True)
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        return len(list(target.glob("*.dist-info"))), size / 1e6


def repository() -> Report:
    """All figures; takes as long as ``make test``."""
    of = lines()
    pytest = [str(Path(sys.executable).parent / "pytest"), "--collect-only", "-q", "-n", "0"]
    quick, _, listed = cpu([*pytest, "-m", "not attack and not integration and not nightly"])
    _, _, others = cpu([*pytest, "-m", "(attack or integration) and not nightly"])
    tests, more = (len(re.findall("::", text)) for text in (listed, others))
    checks = sum(cpu(command)[1] for command in hooks())
    for place in (".mypy_cache", ".ruff_cache", ".import_linter_cache"):
        subprocess.run(["rm", "-rf", str(ROOT / place)], check=True)
    test, wall, _ = cpu(["make", "test"], quiet=False)
    (version, memory), (usage, _) = start("--version"), start("--help")
    packages, size = installed()

    def row(what: str, measured: str, target: str = "", met: bool = True) -> Result:
        return Result(f"{what} (was {BEFORE[what]})", measured, target, met)

    return Report(
        "The repository",
        machine(),
        "What it costs to work on gpunode. A captured line was read on a real node, or printed by "
        f"a real program. The hooks are those of a fix in {CHANGED}, with warm caches; `make test` "
        "begins with cold ones.",
        [
            row("lines by hand", f"{of['by hand']:,}"),
            row("lines of tests and benches by hand", f"{of['of tests and benches by hand']:,}"),
            row("lines generated", f"{of['generated']:,}, none of copies"),
            row("lines captured", f"{of['captured']:,}"),
            row("lines in all", f"{of.total():,}"),
            row("tests of `make test`", f"{tests:,}"),
            row("tests of `.ci/run`", f"{tests + more:,}"),
            row("collection, CPU of a process", f"{quick:.1f} s"),
            row("`make test`, CPU", f"{test:.0f} s, {wall:.0f} s in all", "240 s", test <= 240),
            row("hooks of a fix", f"{checks:.1f} s", "5 s", checks <= 5),
            row(
                "`gpunode --version`",
                f"{version:.3f} s, {memory:.0f} MiB",
                "0.15 s",
                version <= 0.15,
            ),
            row("`gpunode --help`", f"{usage:.3f} s", "0.15 s", usage <= 0.15),
            row("`pip install gpunode[exporter]`", f"{packages} packages, {size:.0f} MB"),
        ],
        [],
    )
