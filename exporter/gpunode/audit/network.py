"""Network adapters and their links, interrupts and buffers."""

from __future__ import annotations

import re

from gpunode.audit.check import NO_ADAPTER, CannotTell, Check, Observation, Subject, each
from gpunode.audit.system import numa_nodes
from gpunode.host.cpu import parse_cpu_list
from gpunode.host.network import VIRTUAL

FAST = 25_000
"""Mb/s; training may use network adapters of at least this speed."""

MTU = 4200
"""Lowest MTU: 4,096 bytes of RoCE payload and its headers; 9000 is the usual setting."""

BUFFER = 16 << 20
INTERRUPT = re.compile(r"\s*(?P<number>\d+):.*mlx5_\w{1,64}@pci:(?P<bus>[0-9a-f:.]+)")


def _fast(subject: Subject) -> list[str]:
    """Ethernet interfaces with a fast link. Raises ``CannotTell`` if there are none."""
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
        raise CannotTell(f"no Ethernet link of {FAST // 1000} Gb/s or more")
    return found


def _mtu(subject: Subject) -> Observation:
    mtus = {name: int(subject.text(f"/sys/class/net/{name}/mtu")) for name in _fast(subject)}
    return each({name: None if mtu >= MTU else str(mtu) for name, mtu in mtus.items()})


def _buffers(subject: Subject) -> Observation:
    _fast(subject)
    names = ("rmem_max", "wmem_max")
    sizes = {f"net.core.{n}": int(subject.text(f"/proc/sys/net/core/{n}")) for n in names}
    return each({name: None if size >= BUFFER else str(size) for name, size in sizes.items()})


def _interrupts(subject: Subject) -> Observation:
    if len(numa_nodes(subject)) < 2:
        raise CannotTell("only one NUMA node")
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
        raise CannotTell(NO_ADAPTER)
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
