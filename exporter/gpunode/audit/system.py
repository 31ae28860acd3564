"""CPU, memory and kernel settings."""

from __future__ import annotations

import re

from gpunode.audit.check import Check, Observation, Subject, Undecided, each
from gpunode.host import cpu
from gpunode.host.memory import parse_meminfo

KERNEL = "https://docs.kernel.org/admin-guide"
SWAPPINESS = 10
SLOW_TO_WAKE = 200.0
"""Longest acceptable wake-up latency of a core in µs; deep idle states take 100 to 1,000."""

MAPS = 262144
CORES = 6
"""Fewest cores for each GPU."""


def _governor(subject: Subject) -> Observation:
    folder = "/sys/devices/system/cpu/cpufreq"
    policies = [name for name in subject.names(folder) if name.startswith("policy")]
    found = {name: subject.text(f"{folder}/{name}/scaling_governor") for name in policies}
    return each({name: None if g == "performance" else g for name, g in found.items()})


def _idle_states(subject: Subject) -> Observation:
    folder = "/sys/devices/system/cpu/cpu0/cpuidle"
    states = subject.names(folder)
    if not states:
        raise Undecided("the kernel manages no CPU idle states")
    enabled = [state for state in states if subject.text(f"{folder}/{state}/disable") == "0"]
    latency = max((float(subject.text(f"{folder}/{s}/latency")) for s in enabled), default=0.0)
    return Observation(latency <= SLOW_TO_WAKE, f"up to {latency:g} µs to wake")


def _clocksource(subject: Subject) -> Observation:
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = subject.text(path)
    return Observation(source in ("tsc", "arch_sys_counter", "kvm-clock"), source)


def _active_choice(text: str) -> str:
    """The active choice, which is the word in brackets."""
    match = re.search(r"\[([^\s[\]]+)\]", text)
    if match is None:
        raise ValueError(f"no choice in brackets: {text[:80]!r}")
    return match[1]


def _huge_pages(subject: Subject) -> Observation:
    chosen = _active_choice(subject.text("/sys/kernel/mm/transparent_hugepage/enabled"))
    return Observation(chosen != "never", chosen)


def _defragmentation(subject: Subject) -> Observation:
    chosen = _active_choice(subject.text("/sys/kernel/mm/transparent_hugepage/defrag"))
    return Observation(chosen != "always", chosen)


def _swappiness(subject: Subject) -> Observation:
    memory = parse_meminfo(subject.text("/proc/meminfo"))
    if not memory.get("SwapTotal"):
        return Observation(True, "no swap")
    value = int(subject.text("/proc/sys/vm/swappiness"))
    return Observation(value <= SWAPPINESS, f"vm.swappiness = {value}")


def _swap_used(subject: Subject) -> Observation:
    memory = parse_meminfo(subject.text("/proc/meminfo"))
    used = memory["SwapTotal"] - memory["SwapFree"] if "SwapTotal" in memory else 0.0
    return Observation(used < 0.01 * memory["MemTotal"], f"{used / 2**30:.1f} GiB in swap")


def _numa_balancing(subject: Subject) -> Observation:
    if len(numa_nodes(subject)) < 2:
        raise Undecided("only one NUMA node")
    value = subject.text("/proc/sys/kernel/numa_balancing")
    return Observation(value == "0", f"kernel.numa_balancing = {value}")


def _zone_reclaim(subject: Subject) -> Observation:
    value = subject.text("/proc/sys/vm/zone_reclaim_mode")
    return Observation(value == "0", f"vm.zone_reclaim_mode = {value}")


def _maps(subject: Subject) -> Observation:
    value = int(subject.text("/proc/sys/vm/max_map_count"))
    return Observation(value >= MAPS, f"vm.max_map_count = {value}")


def _iommu(subject: Subject) -> Observation:
    if not subject.names("/sys/class/iommu"):
        return Observation(True, "no IOMMU in use")
    options = subject.text("/proc/cmdline").split()
    passthrough = {"iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off"}
    found = sorted(passthrough & set(options))
    return Observation(bool(found), found[0] if found else "enabled without iommu=pt")


def _cores(subject: Subject) -> Observation:
    gpus = len(subject.gpus)
    threads = cpu.threads_per_core(subject.node) or 1
    cores = len(cpu.parse(subject.text("/proc/stat")).cores) // threads
    return Observation(cores >= CORES * gpus, f"{cores} cores for {gpus} GPUs")


def numa_nodes(subject: Subject) -> list[str]:
    """The names of the NUMA nodes; none if the kernel does not list them."""
    names = subject.names("/sys/devices/system/node")
    return [name for name in names if re.fullmatch(r"node\d+", name)]


CHECKS = (
    Check(
        "cpu_governor",
        "performance",
        "A core that clocks down between batches is slow to prepare data and launch kernels.",
        "cpupower frequency-set -g performance",
        f"{KERNEL}/pm/cpufreq.html",
        _governor,
    ),
    Check(
        "cores_per_gpu",
        f"at least {CORES} physical cores for each GPU",
        "Loader workers, the Python threads that launch kernels and NCCL's proxies compete for "
        "cores; SMT doubles the CPUs and not the cores.",
        "choose a larger machine or fewer loader workers; move preprocessing to the GPU (DALI)",
        "https://docs.nvidia.com/certification-programs/nvidia-certified-configuration-guide/",
        _cores,
    ),
    Check(
        "cpu_idle_states",
        f"at most {SLOW_TO_WAKE:g} µs to wake",
        "Kernel launches and network interrupts wait until a core wakes up.",
        "boot with intel_idle.max_cstate=1 processor.max_cstate=1, or tuned-adm profile "
        "latency-performance",
        f"{KERNEL}/pm/cpuidle.html",
        _idle_states,
    ),
    Check(
        "clocksource",
        "tsc, arch_sys_counter or kvm-clock",
        "Reading any other clock is a system call; frameworks read it several times per step.",
        "check dmesg for why the kernel rejected the TSC; boot with tsc=reliable",
        f"{KERNEL}/kernel-parameters.html",
        _clocksource,
    ),
    Check(
        "transparent_huge_pages",
        "madvise or always",
        "Without huge pages, buffers of many GiB cause constant TLB misses.",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        f"{KERNEL}/mm/transhuge.html",
        _huge_pages,
    ),
    Check(
        "transparent_huge_pages_defrag",
        "madvise, defer or never",
        "With always, any page fault may stall for many milliseconds to compact memory.",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        f"{KERNEL}/mm/transhuge.html",
        _defragmentation,
    ),
    Check(
        "swappiness",
        f"no swap, or vm.swappiness at most {SWAPPINESS}",
        "A training process swapped out in favour of the page cache stalls every rank.",
        f"sysctl -w vm.swappiness={SWAPPINESS}",
        f"{KERNEL}/sysctl/vm.html#swappiness",
        _swappiness,
    ),
    Check(
        "swap_used",
        "less than 1 % of memory in swap",
        "Swapped pages are read back from disk when a step needs them.",
        "find what uses the memory; then swapoff -a && swapon -a",
        f"{KERNEL}/sysctl/vm.html#swappiness",
        _swap_used,
    ),
    Check(
        "numa_balancing",
        "kernel.numa_balancing = 0",
        "It unmaps pages to see who uses them; for processes bound to their NUMA node, that is "
        "pure overhead.",
        "sysctl -w kernel.numa_balancing=0",
        f"{KERNEL}/sysctl/kernel.html#numa-balancing",
        _numa_balancing,
    ),
    Check(
        "zone_reclaim",
        "vm.zone_reclaim_mode = 0",
        "Otherwise the kernel drops page cache although another NUMA node has free memory.",
        "sysctl -w vm.zone_reclaim_mode=0",
        f"{KERNEL}/sysctl/vm.html#zone-reclaim-mode",
        _zone_reclaim,
    ),
    Check(
        "memory_maps",
        f"vm.max_map_count at least {MAPS}",
        "Memory-mapped datasets and checkpoints with many shards hit the limit and fail.",
        f"sysctl -w vm.max_map_count={MAPS}",
        f"{KERNEL}/sysctl/vm.html#max-map-count",
        _maps,
    ),
    Check(
        "iommu",
        "off or in passthrough mode",
        "Address translation slows DMA of GPUs and network adapters, above all peer-to-peer.",
        "boot with iommu=pt",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs",
        _iommu,
    ),
)
