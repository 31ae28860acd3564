"""Network adapters and their links, interrupts and buffers."""

from __future__ import annotations

import re

from gpunode.audit.check import NO_ADAPTER, Check, Observation, Subject, Undecided, each
from gpunode.audit.system import numa_nodes
from gpunode.host.cpu import parse_cpu_list
from gpunode.host.infiniband import parse_rate
from gpunode.host.network import VIRTUAL
from gpunode.host.pcie import PciDevice, closeness, parse_speed
from gpunode.node.kernel import counter

FAST = 25_000
"""Mb/s; training may use network adapters of at least this speed."""

MTU = 4200
"""Lowest MTU: 4,096 bytes of RoCE payload and its headers; 9000 is the usual setting."""

BUFFER = 16 << 20
CONGESTION_CONTROLS = ("bbr", "cubic", "dctcp", "htcp")
FAST_RDMA = 100e9 / 8
"""Bytes per second; slower adapters are there for management."""

BEHIND_A_SWITCH = 4
"""Bridges above a device behind a PCI Express switch: the host bridge, a root port and the two
ports of the switch. A virtual machine shows none of its host's."""
INTERRUPT = re.compile(r"\s*(?P<number>\d+):.*mlx5_\w{1,64}@pci:(?P<bus>[0-9a-f:.]+)")


def _fast(subject: Subject) -> list[str]:
    """Ethernet interfaces with a fast link. Raises ``Undecided`` if there are none."""
    found = []
    for name in subject.names("/sys/class/net"):
        if VIRTUAL.fullmatch(name):
            continue
        try:
            speed = int(subject.text(f"/sys/class/net/{name}/speed"))
            kind = subject.text(f"/sys/class/net/{name}/type")
        except (OSError, ValueError):  # no link
            continue
        if speed >= FAST and kind == "1":
            found.append(name)
    if not found:
        raise Undecided(f"no Ethernet link of {FAST // 1000} Gb/s or more")
    return found


def _mtu(subject: Subject) -> Observation:
    mtus = {name: int(subject.text(f"/sys/class/net/{name}/mtu")) for name in _fast(subject)}
    return each({name: None if mtu >= MTU else str(mtu) for name, mtu in mtus.items()})


def _buffers(subject: Subject) -> Observation:
    _fast(subject)
    names = ("rmem_max", "wmem_max")
    sizes = {f"net.core.{n}": int(subject.text(f"/proc/sys/net/core/{n}")) for n in names}
    return each({name: None if size >= BUFFER else str(size) for name, size in sizes.items()})


def _congestion(subject: Subject) -> Observation:
    _fast(subject)
    chosen = subject.text("/proc/sys/net/ipv4/tcp_congestion_control")
    return Observation(chosen in CONGESTION_CONTROLS, chosen)


def _rdma_rate(subject: Subject, bus_id: str) -> float:
    """The rate of an adapter's fastest port in bytes per second; 0 if it has none for RDMA."""
    devices = subject.names(f"/sys/bus/pci/devices/{bus_id}/infiniband")
    folders = [f for name, f in subject.rdma_ports.items() if name.partition("/")[0] in devices]
    return max((parse_rate(subject.text(f"{folder}/rate")) for folder in folders), default=0.0)


def _behind_switches(subject: Subject) -> list[PciDevice]:
    """The GPUs behind PCI Express switches. Raises ``Undecided`` if there are none."""
    found = [
        device
        for device in subject.pci_devices
        if device.kind == "gpu" and len(device.above) >= BEHIND_A_SWITCH
    ]
    if not found:
        raise Undecided("this machine shows no PCI Express switch above a GPU")
    return found


def _near_gpu(subject: Subject) -> Observation:
    gpus = _behind_switches(subject)
    adapters = [
        device
        for device in subject.pci_devices
        if device.kind == "nic" and _rdma_rate(subject, device.bus_id) >= FAST_RDMA
    ]
    if not adapters:
        raise Undecided(f"{NO_ADAPTER} of {FAST_RDMA * 8 / 1e9:g} Gb/s or more")
    finding = each(
        {
            f"GPU {gpu.bus_id}": (
                None
                if any(closeness(gpu, adapter)[1] == "same_switch" for adapter in adapters)
                else "no adapter behind its switch"
            )
            for gpu in gpus
        }
    )
    ratio = f"{len(adapters)} adapters for {len(gpus)} GPUs"
    return Observation(finding.ok, ratio if finding.ok else f"{finding.found} ({ratio})")


def _bandwidth(subject: Subject, bus_id: str, which: str) -> float:
    """Transfers per second over all lanes of a link, as it is or at most."""
    folder = f"/sys/bus/pci/devices/{bus_id}"
    speed = parse_speed(subject.text(f"{folder}/{which}_link_speed"))
    return speed * counter(subject.text(f"{folder}/{which}_link_width"))


def _uplinks(subject: Subject) -> Observation:
    gpus = _behind_switches(subject)
    findings: dict[str, str | None] = {}
    for gpu in gpus:
        switch = gpu.above[2]
        sharing = sum(other.above[2] == switch for other in gpus)
        share = _bandwidth(subject, switch, "current") / sharing
        own = _bandwidth(subject, gpu.bus_id, "max")
        enough = share >= own / 2
        findings[f"GPU {gpu.bus_id}"] = (
            None if enough else f"{share / own:.0%} of its link, {sharing} GPUs behind {switch}"
        )
    return each(findings)


def _interrupts(subject: Subject) -> Observation:
    if len(numa_nodes(subject)) < 2:
        raise Undecided("only one NUMA node")
    findings: dict[str, str | None] = {}
    for line in subject.text("/proc/interrupts").splitlines():
        match = INTERRUPT.match(line)
        if match is None:
            continue
        local = parse_cpu_list(subject.text(f"/sys/bus/pci/devices/{match['bus']}/local_cpulist"))
        number = match["number"]
        cpus = parse_cpu_list(subject.text(f"/proc/irq/{number}/smp_affinity_list"))
        findings[f"IRQ {number}"] = None if cpus & local else f"of {match['bus']} on a remote node"
    return each(findings)


def _ports_active(subject: Subject) -> Observation:
    if not subject.rdma_ports:
        raise Undecided(NO_ADAPTER)
    states = {name: subject.text(f"{folder}/state") for name, folder in subject.rdma_ports.items()}
    return each({name: None if "ACTIVE" in state else state for name, state in states.items()})


def _links(subject: Subject) -> Observation:
    folder = "/sys/bus/pci/devices"
    findings: dict[str, str | None] = {}
    for bus_id in subject.names(folder):
        if not subject.text(f"{folder}/{bus_id}/class").startswith(("0x0200", "0x0207")):
            continue
        try:
            now, best = (
                f"{subject.text(f'{folder}/{bus_id}/{which}_link_speed').split(' PCIe')[0]} "
                f"x{subject.text(f'{folder}/{bus_id}/{which}_link_width')}"
                for which in ("current", "max")
            )
        except OSError:  # virtual adapters have no link
            continue
        findings[bus_id] = None if now == best else f"{now} of {best}"
    return each(findings)


CHECKS = (
    Check(
        "mtu",
        f"at least {MTU} on fast Ethernet; 9000 is usual",
        "Small frames cost CPU time with TCP, and RoCE falls back to packets of 1,024 bytes.",
        "ip link set DEVICE mtu 9000; set it on the switches too",
        "https://enterprise-support.nvidia.com/s/article/mtu-considerations-for-roce-based-applications",
        _mtu,
    ),
    Check(
        "tcp_buffers",
        f"net.core.rmem_max and wmem_max at least {BUFFER}",
        "A fast link with a round-trip time of 1 ms needs megabytes in flight.",
        f"sysctl -w net.core.rmem_max={BUFFER} net.core.wmem_max={BUFFER}",
        "https://fasterdata.es.net/host-tuning/linux/",
        _buffers,
    ),
    Check(
        "congestion_control",
        f"{', '.join(CONGESTION_CONTROLS[:-1])} or {CONGESTION_CONTROLS[-1]} on fast Ethernet",
        "Others, such as reno, take minutes to fill a fast link again after one lost packet.",
        "sysctl -w net.ipv4.tcp_congestion_control=cubic",
        "https://fasterdata.es.net/host-tuning/linux/",
        _congestion,
    ),
    Check(
        "rdma_near_gpu",
        "an RDMA adapter behind the PCI Express switch of each GPU",
        "NCCL uses GPUDirect RDMA only below a host bridge; otherwise traffic goes through host "
        "memory, and GPUs that share an adapter share its bandwidth.",
        "move the adapters to the slots of the GPUs' switches; compare nvidia-smi topo -m",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
        _near_gpu,
    ),
    Check(
        "gpu_pcie_uplink",
        "at least half of a GPU's own bandwidth from its switch to the host",
        "GPUs behind one switch share its link to the CPU, on which batches and checkpoints go.",
        "compare lspci -vv of the switch's upstream port; reseat the riser, or spread the GPUs",
        "https://docs.nvidia.com/certification-programs/nvidia-certified-configuration-guide/",
        _uplinks,
    ),
    Check(
        "nic_interrupts",
        "on the adapter's own NUMA node",
        "Interrupts on the other socket move every packet across the link between sockets.",
        "set_irq_affinity_bynode.sh NODE DEVICE, with irqbalance stopped",
        "https://enterprise-support.nvidia.com/s/article/what-is-irq-affinity-x",
        _interrupts,
    ),
    Check(
        "infiniband_ports",
        "all active",
        "NCCL uses only the ports that are up; each port that is down costs its bandwidth.",
        "check the cable and the switch port; ibstat DEVICE",
        "https://docs.nvidia.com/networking/display/mlnxofedv24010331/ib+port+information",
        _ports_active,
    ),
    Check(
        "nic_pcie_link",
        "highest supported speed and width",
        "In a slow slot or with a bad contact, an adapter cannot reach the speed of its port.",
        "reseat the card or use another slot; lspci -vv -s BUS_ID",
        "https://docs.kernel.org/PCI/sysfs-pci.html",
        _links,
    ),
)
