"""Captures this machine as a test machine: the files below, now and ten seconds later.

    python tests/machines/capture.py FOLDER [PID…]

Addresses and serial numbers are not read. Processes are captured with their children.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from pathlib import Path

NODE = """
/proc/stat /proc/loadavg /proc/meminfo /proc/vmstat /proc/diskstats /proc/mounts /proc/cmdline
/proc/modules /proc/interrupts /proc/version /proc/pressure/* /proc/1/mountinfo /proc/1/cgroup
/proc/1/net/dev /proc/1/net/snmp /proc/1/net/netstat /proc/net/dev /proc/net/snmp
/proc/net/netstat /proc/1/mountstats /proc/sys/vm/* /proc/sys/net/core/*mem* /proc/sys/net/ipv4/tcp*
/proc/sys/kernel/numa_balancing /proc/sys/fs/file-nr /proc/sys/fs/file-max
/proc/fs/lustre/*/*/* /sys/kernel/debug/lustre/*/*/* /proc/irq/*/smp_affinity_list
/proc/irq/*/node /proc/driver/nvidia/version /proc/driver/nvidia/params
/proc/driver/nvidia/gpus/*/power /sys/module/nvidia*/version
/sys/block/*/queue/* /sys/block/*/device/model /sys/block/*/size
/sys/class/nvme/*/* /sys/class/nvme/*/hwmon*/temp*
/sys/class/net/*/speed /sys/class/net/*/mtu /sys/class/net/*/operstate /sys/class/net/*/carrier
/sys/class/net/*/carrier_changes /sys/class/net/*/type /sys/class/net/*/statistics/*
/sys/class/net/*/device/uevent /sys/class/net/*/device/numa_node
/sys/class/net/*/device/local_cpulist
/sys/class/infiniband/*/* /sys/class/infiniband/*/device/uevent
/sys/class/infiniband/*/device/numa_node /sys/class/infiniband/*/ports/*/*
/sys/class/infiniband/*/ports/*/counters/* /sys/class/infiniband/*/ports/*/hw_counters/*
/sys/bus/pci/devices/*/class /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/device
/sys/bus/pci/devices/*/current_link_* /sys/bus/pci/devices/*/max_link_*
/sys/bus/pci/devices/*/aer_dev_* /sys/bus/pci/devices/*/numa_node /sys/bus/pci/devices/*/uevent
/sys/bus/pci/devices/*/local_cpulist
/sys/devices/system/node/online /sys/devices/system/node/*/cpulist
/sys/devices/system/node/*/meminfo /sys/devices/system/node/*/distance
/sys/devices/system/cpu/online /sys/devices/system/cpu/smt/active
/sys/devices/system/cpu/cpufreq/*/scaling_* /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor
/sys/devices/system/cpu/cpu0/cpuidle/*/* /sys/devices/system/clocksource/*/current_clocksource
/sys/kernel/mm/transparent_hugepage/* /sys/kernel/mm/hugepages/*/* /sys/class/iommu/*/type
/sys/fs/cgroup/cpu.* /sys/fs/cgroup/memory.* /sys/fs/cgroup/io.* /sys/fs/cgroup/cgroup.controllers
""".split()  # noqa: SIM905
PROCESS = """
stat status comm cgroup limits io mountinfo oom_score_adj
task/*/stat task/*/children task/*/comm
""".split()  # noqa: SIM905
CGROUP = """
cpu.stat cpu.max cpu.pressure io.pressure memory.pressure memory.stat memory.max memory.high
memory.current memory.events memory.swap.current cgroup.procs pids.current pids.max
""".split()  # noqa: SIM905
MAX_FILE_BYTES = 1 << 20
SECRET = ("serial", "vpd", "guid", "subsysnqn", "address", "_id")


def tree(pid: str) -> list[str]:
    """A process and all that descend from it."""
    children = " ".join(
        Path(path).read_text() for path in glob.glob(f"/proc/{pid}/task/*/children")
    ).split()
    return [pid, *(p for child in children for p in tree(child))]


def paths(pids: list[str]) -> list[str]:
    patterns = [*NODE, *(f"/proc/{pid}/{name}" for pid in pids for name in PROCESS)]
    for pid in pids:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            group = line.rpartition(":")[2]
            patterns += [f"/sys/fs/cgroup{group}/{name}" for name in CGROUP]
            patterns += [f"/sys/fs/cgroup/*{group}/{name}" for name in CGROUP]
    return sorted({path for pattern in patterns for path in glob.glob(pattern)})


def contents(wanted: list[str]) -> dict[str, bytes]:
    """What could be read of the wanted files."""
    found = {}
    for path in wanted:
        if any(word in Path(path).name for word in SECRET) or not os.path.isfile(path):
            continue
        try:
            with open(path, "rb") as file:
                found[path] = file.read(MAX_FILE_BYTES)
        except OSError:
            continue
    return found


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        to = folder / path.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)


def filesystems(pids: list[str]) -> dict[str, dict[str, int]]:
    mounts = [line.split()[4] for line in Path("/proc/1/mountinfo").read_text().splitlines()]
    found = {}
    for path in [*mounts, "/dev/shm", *(f"/proc/{pid}/root/dev/shm" for pid in pids)]:
        try:
            answer = os.statvfs(path)
        except OSError:
            continue
        block = answer.f_frsize
        found[path] = {
            "size": answer.f_blocks * block,
            "free": answer.f_bfree * block,
            "available": answer.f_bavail * block,
            "files": answer.f_files,
            "files_free": answer.f_ffree,
        }
    return found


def main(folder: Path, roots: list[str]) -> None:
    pids = [pid for root in roots for pid in tree(root)]
    wanted = paths(pids)
    first, spaces = contents(wanted), filesystems(pids)
    time.sleep(10.0)
    later, later_spaces = contents(wanted), filesystems(pids)
    write(folder / "first", first)
    write(folder / "later", {p: c for p, c in later.items() if c != first.get(p)})
    answers = {"first": {"filesystems": spaces}, "later": {"filesystems": later_spaces}}
    (folder / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
