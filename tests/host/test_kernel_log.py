"""Lines of the kernel's log by kind, as several versions of its drivers write them."""

from __future__ import annotations

import pytest

from gpunode.host.kernel_log import XID, kind_of, message_of

MLX5 = "mlx5_core 0000:5e:00.0"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028"

LINES = {
    "lockup": [
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "INFO: rcu_sched self-detected stall on CPU { 12}",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies",
        "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]",
        "watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "watchdog: CPU7: Watchdog detected hard LOCKUP on cpu 3",
    ],
    "hung_task": [
        "INFO: task dd:456 blocked for more than 120 seconds.",
        "INFO: task dd:456 blocked in I/O wait for more than 122 seconds.",
    ],
    "disk_error": [
        "nvme nvme4: I/O 22 QID 3 timeout, aborting",
        "nvme nvme4: queue 3: timeout request 0x5 type 4",
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
        "nvme nvme4: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
        "nvme nvme4: Device not ready; aborting reset, CSTS=0x1",
        "nvme nvme4: Disabling device after reset failure: -19",
        "nvme nvme4: Removing after probe failure status: -19",
        "block nvme4n1: no available path - failing I/O",
        'XFS (nvme0n1): metadata I/O error in "xfs_da_read_buf+0xd9/0x130" at daddr 0x2 len 8',
        "XFS (md0): log I/O error -5",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory",
        "md/raid1:md0: Disk failure on sdb1, disabling device.",
        "md/raid:md127: Disk failure on nvme1n1, disabling device.",
    ],
    "read_only": [
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "XFS (nvme0n1): Corruption of in-memory data (0x8) detected. Shutting down filesystem.",
        "XFS (sda1): Log I/O Error (0x2) detected at xlog_ioend_work. Shutting down filesystem.",
        "XFS (dm-0): Filesystem has been shut down due to log error (0x2).",
        "BTRFS info (device sdb1: state EA): forced readonly",
    ],
    "bus_error": [
        "Memory failure: 0x12f7c8: Killing x:33395 due to hardware memory corruption",
        "Memory failure: 0x12f7c8: Sending SIGBUS to x:33395 due to hardware memory corruption",
    ],
    "link_down": [
        f"{MLX5}: Port module event: module 1, Cable unplugged",
        f"{MLX5}: Port module event[error]: module 0, Cable error, Bus stuck",
        f"{MLX5} ens1f0np0: Link down",
        f"{MLX5} mlx5_5: Port: 1 Link DOWN",
        "bnxt_en 0000:31:00.0 enp49s0f0np0: NIC Link is Down",
        "igb 0000:31:00.0 eno1: igb: eno1 NIC Link is Down",
        "tg3 0000:31:00.0 eno1: Link is down",
        "gve 0000:00:04.0 eth0: Device link is down.",
        "bond0: (slave eth0): link status definitely down, disabling slave",
        "bond0: link status definitely down for interface eth0, disabling it",
    ],
    "network_adapter": [
        f"{MLX5}: print_health_info:416:(pid 0): synd 0x1: firmware internal error",
        f"{MLX5}: poll_health:840:(pid 0): device's health compromised - reached miss count",
        f"{MLX5} ens1f0np0: TX timeout detected",
        f"{MLX5}: temp_warn:161:(pid 0): High temperature on sensors with bit set 0 1",
    ],
    "nvrm": [
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "NVRM: The NVIDIA GPU 0000:1b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system "
        "has\\x0aNVRM: fallen off the bus and is not responding to commands.",
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x22:0x56:897)",
        "NVRM: _kgspLogXid119: ********** GSP Timeout **********",
        "NVRM: API mismatch: the client has the version 570.1, but",
    ],
    "xid": [
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=1, name=x",
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0000:01:00): 14, Channel 00000001",
    ],
    "sxid": [f"{SXID}, Non-fatal, Link 32 egress non-posted PRIV error (First)"],
    "pcie_aer": [
        "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
        "pcieport 0000:00:01.0: AER: Corrected error received: id=00e0",
        "pcieport 0000:00:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:01:00.0",
        "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0",
    ],
    "machine_check": [
        "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
        "mce: [Hardware Error]: Machine check events logged",
        "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 13: 8c00004000010090",
        "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 3: be00000000800400",
        "EDAC MC2: 1 CE memory scrubbing error on CPU_SrcID#0_MC#2_Chan#0_DIMM#0",
        "EDAC skx MC2: 1 UE memory read error on CPU_SrcID#0_MC#2_Chan#0_DIMM#0",
    ],
    "oom_kill": [
        "Memory cgroup out of memory: Killed process 123 (python) total-vm:1kB",
        "Out of memory: Kill process 123 (python) score 900 or sacrifice child",
        "Out of memory (oom_kill_allocating_task): Killed process 123 (python) total-vm:1kB",
    ],
}

AGAIN = [
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/",
    f"{SXID}, Severity 0 Engine instance 32 Sub-engine instance 00",
    f"{SXID}, Data {{0x00140004, 0x00000000}}",
    f"{MLX5}: print_health_info:424:(pid 0): Health issue observed, firmware internal error",
    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:01:00.0:    [ 0] RxErr                  (First)",
    "nvidia 0000:01:00.0: AER:   Error of this Agent is reported first",
    "pcieport 0000:00:01.0: AER: found no error details for 0000:00:01.0",
    "pcieport 0000:00:01.0: AER: broadcast error_detected message",
    "nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)",
    "pcieport 0000:00:01.0: DPC: unmasked uncorrectable error detected",
    "mce: [Hardware Error]: TSC 30c13693836f6 ",
    "mce: [Hardware Error]: PROCESSOR 0:606a6 TIME 1700000000 SOCKET 0 APIC 3 microcode 107",
    "EDAC skx MC2: HANDLING MCE MEMORY ERROR",
    "NVRM: GPU0 GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x20802a02 0x8.",
    "NVRM: GPU0 RPC history (CPU -> GSP):",
    "NVRM: GPU0 RPC event history (CPU <- GSP):",
    "NVRM:      0    76   GSP_RM_CONTROL        0x0000000020802a02 0x0000000000000008   372us",
    "NVRM:     -4    4124 GSP_LOCKDOWN_NOTICE   0x0000000000000001 0x0000000000000000",
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:1b:00 (printing 1 of every 30).",
]
"""Further lines about an event that has been counted."""

NORMAL = [
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.1  Release Build",
    "NVRM: GPU at PCI:0000:1b:00: GPU-aa",
    f"{MLX5}: Port module event: module 0, Cable plugged",
    "CPU1: Core temperature above threshold, cpu clock throttled (total events = 963903)",
]
"""Lines of machines that are well, or of none of our kinds."""


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind in LINES for line in LINES[kind]])
def test_a_line_is_of_its_kind(kind: str, line: str) -> None:
    assert kind_of(line) == kind


@pytest.mark.parametrize("line", AGAIN)
def test_an_event_counts_once(line: str) -> None:
    assert kind_of(line) is None


@pytest.mark.parametrize("line", NORMAL)
def test_what_is_no_event_is_not_counted(line: str) -> None:
    assert kind_of(line) is None


@pytest.mark.parametrize(
    "start",
    [
        "Nov  1 12:00:00 node-1 kernel: ",
        "Nov 22 12:00:00 node-1 kernel: [  123.456789] ",
        "Nov 22 12:00:00 node-1 kernel: [123456.789012][T4242] ",
        "2026-11-22T12:00:00.123456+00:00 node-1 kernel: [  123.456789][    C7] ",
        "2026-11-22T12:00:00Z node-1 kernel: ",
    ],
)
def test_a_line_of_syslog_begins_in_many_ways(start: str) -> None:
    assert message_of("/var/log/syslog", f"{start}{LINES['xid'][0]}") == LINES["xid"][0]


@pytest.mark.parametrize(("line", "xid"), list(zip(LINES["xid"], ("94", "79", "14"), strict=True)))
def test_an_xid_tells_its_gpu(line: str, xid: str) -> None:
    match = XID.match(line)
    assert match is not None
    assert (match["address"], match["xid"]) == ("0000:01:00", xid)
