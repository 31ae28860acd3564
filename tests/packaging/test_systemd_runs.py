"""The units under a systemd that runs, in namespaces of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import until
from tests.needs import ROOT, as_root, need

UNITS = ROOT / "exporter/systemd"
SERVICES = ("gpunode-files", "gpunode-network", "gpunode-stacks", "gpunode")

BOOT = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
umount --lazy sys/fs/cgroup || true
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount --bind "$2" opt/gpunode/exporter
mount --bind "$3" opt/gpunode/site
exec env container=test chroot . /lib/systemd/systemd --log-target=console --log-level=err
"""

PROGRAM = """#!/bin/sh
PYTHONPATH=/opt/gpunode/exporter:/opt/gpunode/site exec python3 -m gpunode "$@"
"""

ASK = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9816/metrics').read().decode())"
)

STARTED = ("running", "degraded")

Inside = Callable[..., str]
"""Runs a command beside systemd; what it prints."""


@pytest.fixture
def booted(tmp_path: Path) -> Iterator[Inside]:
    """A Debian with the units, whose systemd has started."""
    root, version = tmp_path / "root", "{}.{}".format(*sys.version_info)
    command = [need("mmdebstrap"), "--quiet", "--variant=minbase", "bookworm", str(root)]
    command.insert(3, "--include=systemd,systemd-sysv,python3")
    subprocess.run(command, check=True)
    if not (root / f"usr/bin/python{version}").exists():
        pytest.skip(f"Debian 12 has no Python {version}, for which the packages here are")
    for folder in ("bin", "exporter", "site"):
        (root / "opt/gpunode" / folder).mkdir(parents=True)
    program = root / "opt/gpunode/bin/gpunode"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for unit in UNITS.glob("*.service"):
        (root / "etc/systemd/system" / unit.name).write_bytes(unit.read_bytes())
    namespaces = [
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--uts",
        "--ipc",
        "--cgroup",
        "--net",
    ]
    places = [str(root), str(ROOT / "exporter"), sysconfig.get_path("purelib")]
    start = [need("unshare"), *namespaces, "bash", "-c", BOOT, "boot", *places]
    with subprocess.Popen(start) as outside:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")

        def inside(*command: str) -> str:
            first = children.read_text().split()[0]
            enter = [need("nsenter"), "-t", first, "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
            ran = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
            return ran.stdout

        try:
            until(children.read_text)
            until(lambda: inside("systemctl", "is-system-running").strip() in STARTED)
            yield inside
        finally:
            outside.kill()


@as_root
@pytest.mark.nightly
@pytest.mark.integration
def test_the_daemon_has_no_privilege_and_reaches_its_helpers(booted: Inside) -> None:
    booted("systemctl", "start", *SERVICES)
    states = booted("systemctl", "is-active", *SERVICES).split()
    assert states == ["active"] * len(SERVICES)

    def helpers() -> set[str]:
        lines = booted("python3", "-c", ASK).splitlines()
        found = (line for line in lines if line.startswith("gpunode_helper_cpu_seconds_total{"))
        return {line.split('"')[1] for line in found}

    until(lambda: helpers() == {"files", "network", "stacks"})
    pid = booted("systemctl", "show", "--property=MainPID", "--value", "gpunode").strip()
    status = booted("cat", f"/proc/{pid}/status")
    assert "CapPrm:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Uid:\t0" not in status

    def heard() -> list[str]:
        show = ("systemctl", "show", "--property=WatchdogTimestampMonotonic", "--value")
        return [booted(*show, unit).strip() for unit in SERVICES[:3]]

    begin = heard()
    until(lambda: all(now not in ("0", then) for now, then in zip(heard(), begin, strict=True)))
    assert "/incidents" in booted("find", "/var/lib/private/gpunode", "-name", "incidents")
