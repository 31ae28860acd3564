"""Lines of the kernel's log by kind, as several versions of its drivers write them."""

from __future__ import annotations

import contextlib
from itertools import product

from gpunode.config.daemon import Settings
from gpunode.host.kernel_log import KMSG, XID, KernelLog, kind_of, level_of, message_of
from gpunode.host.kernel_trouble import WARNING, troubled
from tests.cases import with_each
from tests.machine import MACHINES, Machine

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
        "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.",
        "blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0",
        "critical space allocation error, dev dm-3, sector 8 op 0x1:(WRITE)",
        "nvme0c1n1: I/O Cmd(0x2) @ LBA 4, 8 blocks, I/O Error (sct 0x2 / sc 0x81) DNR",
        "nvme nvme0: Abort status: 0x371",
        "Buffer I/O error on device sda1, logical block 0, async page read",
        "EXT4-fs (dm-0): I/O error while writing superblock",
        "EXT4-fs (sda1): previous I/O error to superblock detected",
        "Aborting journal on device nvme0n1p2-8.",
        "XFS (nvme1n1): Metadata CRC error detected at xfs_agf_read_verify+0x9a/0xb0",
        "BTRFS warning (device sdb1): csum failed root 5 ino 257 off 0",
        "EXT4-fs warning (device sda1): ext4_end_bio:343: I/O error 10 writing to inode 12",
        "nvme nvme0: Failed reconnect attempt 3",
        "md/raid:md0: read error corrected (8 sectors at 2048 on sdb1)",
        "BTRFS error (device sdb1): bdev /dev/sdb1 errs: wr 3, rd 0, flush 0, corrupt 0, gen 0",
        "device-mapper: multipath: 253:4: Failing path 8:16.",
        "kworker/u203:1: attempt to access beyond end of device",
    ],
    "nfs": [
        "nfs: server filer not responding, still trying",
        "lockd: server filer not responding, timed out",
        "NFS: __nfs4_reclaim_open_state: Lock reclaim failed!",
        "NFS: state manager: lease expired failed on NFSv4 server filer with error 10006",
    ],
    "lustre": [
        "Lustre: 7:0:(client.c:2310:ptlrpc_expire_one_request()) @@@ Request sent has timed out "
        "for slow reply: [sent 17/real 17]  req@0 x18/t0(0) o4->scratch-OST003a-osc-ffff",
        "LNetError: 3381:0:(o2iblnd_cb.c:3286:kiblnd_check_conns()) Timed out RDMA with 10.1.0.1",
        "LNet: 3381:0:(o2iblnd_cb.c:3370:kiblnd_check_conns()) Timed out tx for 10.1.0.1@o2ib: 5",
    ],
    "remote_filesystem": [
        "libceph: osd2 (1)10.0.0.1:6805 socket closed (con state OPEN)",
        "libceph: mon0 (1)10.0.0.1:6789 session lost, hunting for new mon",
        "libceph: osd56 down",
        "ceph: [5f9a4c 4123]: mds0 hung",
        "rbd: rbd0: write at objno 12 0~4096 result -110",
        "CIFS: VFS: \\\\filer has not responded in 180 seconds. Reconnecting...",
        "mmfs: [E] CCR: failed to connect to node 10.0.0.1:1191 (sock 42 err 1143)",
    ],
    "iommu_fault": [
        "DMAR: [DMA Read NO_PASID] Request device [1b:00.0] fault addr 0xfe000000",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0020 address=0xfe00]",
        "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0020 address=0xfe00]",
        "arm-smmu-v3 arm-smmu-v3.3.auto: event 0x10 received:",
    ],
    "kernel_bug": [
        "Kernel panic - not syncing: hung_task: blocked tasks",
        "BUG: unable to handle page fault for address: ffffffffc0a3e000",
        "kernel BUG at mm/slub.c:435!",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
        "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    ],
    "file_limit": ["VFS: file-max limit 1000000 reached"],
    "cpu_hot": [
        "CPU1: Core temperature above threshold, cpu clock throttled (total events = 963903)",
        "mce: CPU4: Package temperature above threshold, cpu clock throttled",
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
        f"{MLX5}: Port module event: module 1, absent",
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
        f"{MLX5} ens1f0np0: Error cqe on cqn 0x417, ci 0xb, sqn 0x1a2c, opcode 0xd, syndrome 0x2",
        f"{MLX5}: Firmware over 120000 MS in pre-initializing state, aborting",
        "bnxt_en 0000:3b:00.0 eth0: Error (timeout: 500015) msg {0x0 0x0} len:0",
        f"{MLX5}: temp_warn:161:(pid 0): High temperature on sensors with bit set 0 1",
        f"{MLX5}: Port module event[error]: module 0, Cable error, High Temperature",
        f"{MLX5}: Port module event[error]: module 0, Cable error, PCIe system power slot Exceeded",
        "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, "
        "High Temperature",
        f"{MLX5}: mlx5_pcie_event:299:(pid 7): Detected insufficient power on the PCIe slot (27W).",
        f"{MLX5}: wait_func:1195:(pid 7): ENABLE_HCA(0x104) timeout. Will cause a leak of a "
        "command resource",
        "mlx5_core: INFO: synd 0x8: unrecoverable hardware error.",
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out",
        "NETDEV WATCHDOG: CPU: 0: transmit queue 0 timed out 2010 ms",
        "bnxt_en 0000:04:00.0 eth0: NETDEV WATCHDOG: CPU: 2: transmit queue 1 timed out 5123 ms",
        "ice 0000:31:00.0 eth0: tx_timeout: VSI_num: 8, Q 12, NTC: 0x1",
        "bnxt_en 0000:19:00.0: QPLIB: cmdq[0x4b9]=0x15 status 0x5",
        "infiniband bnxt_re0: Failed to allocate HW AH",
        "infiniband rdmap0s6: Wait for completion (polling) timeout",
        "infiniband rdmap16s27: The device didn't send any completion for admin cmd CREATE_QP(6)",
        "efa 0000:00:06.0 rdmap0s6: Admin queue is closed",
        "efa 0000:00:06.0: Reset indication didn't turn off",
        "efa 0000:00:06.0: Device isn't ready, abort com init",
        "ena 0000:00:05.0 eth0: Keep alive watchdog timeout.",
    ],
    "nvrm": [
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "NVRM: The NVIDIA GPU 0000:1b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system "
        "has\\x0aNVRM: fallen off the bus and is not responding to commands.",
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x22:0x56:897)",
        "NVRM: _kgspLogXid119: ********** GSP Timeout **********",
        "NVRM: API mismatch: the client has the version 570.1, but",
        "NVRM: The NVIDIA GPU 0000:1b:00.0",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:1b:00 (printing 1 of 30).",
    ],
    "peermem": [
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping",
        "nvidia_peermem nv_mem_get_pages:210 ERROR p2p_get_pages failed",
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

REPEATED_LINES = [
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/",
    f"{SXID}, Severity 0 Engine instance 32 Sub-engine instance 00",
    f"{SXID}, Data {{0x00140004, 0x00000000}}",
    f"{MLX5}: print_health_info:424:(pid 0): Health issue observed, firmware internal error",
    f"{MLX5}: print_health_info:431:(pid 0): ext_synd 0x8f5c",
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
]
"""Further lines about an event that has been counted."""

NORMAL = [
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.1  Release Build",
    "NVRM: GPU at PCI:0000:1b:00: GPU-aa",
    f"{MLX5}: Port module event: module 0, Cable plugged",
    "nvidia: loading out-of-tree module taints kernel.",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
    "nvidia-nvlink: Unregistered Nvlink Core, major device number 508",
    "nvidia 0000:1b:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  535.104.05",
    "nvidia-uvm: Loaded the UVM driver, major device number 235.",
    "nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module "
    "nvidia, inheriting taint.",
    "nvidia-nvswitch0: open (major=510)",
    "NVRM: GPU at 0000:01:00.0 has software scheduler DISABLED with policy NONE.",
    f"{MLX5}: mlx5_health_try_recover:365:(pid 12): health recovery succeeded",
    "infiniband mlx5_0: dump_cqe:272:(pid 4242): dump error cqe",
    "EXT4-fs (sda1): error count since last fsck: 12",
    "md/raid1:md0: active with 2 out of 2 mirrors",
    "NVRM: GPU Board Serial Number: 0325015054694",
    "NVRM: GPU 0000:05:00.0: GPU serial number is 0325015054694.",
    "NVRM: A GPU crash dump has been created. If possible, please run",
    "NVRM: nvidia-bug-report.sh as root to collect this data before",
    f"{MLX5}: firmware version: 28.39.1002",
    f"{MLX5}: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
    f"{MLX5}: mlx5_fw_tracer_start:776:(pid 9890): FWTracer: Ownership granted and active",
    f"{MLX5}: MLX5E: StrdRq(0) RqSz(1024) StrdSz(256) RxCqeCmprss(0)",
    f"{MLX5} ens1f0np0: Link up",
    f"{MLX5}: mlx5_cmd_out_err:838:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad "
    "resource(0x5), syndrome (0x305684), err(-22)",
    "efa 0000:00:1b.0: enabling device (0010 -> 0012)",
    "efa 0000:00:1b.0: Setup irq:191 name:efa-mgmnt@pci:0000:00:1b.0",
    "efa 0000:00:1b.0 efa_0: IB device registered",
    "bnxt_en 0000:3b:00.0 p1p1: Firmware reset request successful.",
    "XFS (nvme0n1p2): Mounting V5 Filesystem d7003ecc-db6f-4bfb-bf92-60376b6a6563",
    "XFS (nvme0n1p2): Ending clean mount",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none.",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "nvme0: Admin Cmd(0x6), I/O Error (sct 0x0 / sc 0x2) MORE DNR",
    "nvme nvme3: Abort status: 0x0",
    "Lustre: Lustre: Build Version: 2.15.7",
    "LNet: Added LNI 10.131.0.2@tcp [8/256/0/180]",
    "LNet: Accept secure, port 988",
    "LNet: Using FastReg for registration",
    "Lustre: Mounted scratch-client",
    "Lustre: scratch-OST0001-osc-ffff: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)",
    "nfs: server filer OK",
    "libceph: mon0 (1)10.0.0.1:6789 session established",
    "libceph: osd9 weight 0x0 (out)",
    "device-mapper: multipath: version 1.14.0 loaded",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "DMAR: DRHD: handling fault status reg 2",
    "usb 1-1: new high-speed USB device number 4 using ehci-pci",
    "python3[4242]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6",
]
"""Lines of machines that are well, or of none of our kinds."""

UNKNOWN = [
    "NVRM: Xid (PCI:0000:1b:00, instance 2): 79, GPU has fallen off the bus.",
    "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "nvidia-uvm: uvm_ats_sva: fault on device 3 was refused",
    f"{MLX5}: mlx5_ldma_thing:12:(pid 7): LDMA engine 3 died",
    "infiniband rdmap0s6: Failed to submit command REG_MR (opcode 9) err -12",
    "bnxt_en 0000:21:00.1 ens2f1np1: hwrm req_type 0x53 seq id 0x6fca error 0x2",
    "nvme nvme0: Identify Descriptors failed (nsid=1, status=0x371)",
    "XFS (nvme0n1): page discard on page 00000000a4b1 failed",
    "NFS: server 10.0.0.1 error: fileid changed",
    "beegfs: mount(4242): Unable to reach the management daemon",
]
"""Lines that tell of trouble, in forms that no kind has."""


@with_each([(kind, line) for kind in LINES for line in LINES[kind]])
def test_a_line_is_of_its_kind(kind: str, line: str) -> None:
    assert kind_of(line) == kind


@with_each(REPEATED_LINES)
def test_an_event_counts_once(line: str) -> None:
    assert kind_of(line) is None


@with_each(NORMAL)
def test_what_is_no_event_is_not_counted(line: str) -> None:
    assert kind_of(line) is None


@with_each(product([*REPEATED_LINES, *NORMAL], [None, 3, WARNING, 6]))
def test_what_is_ordinary_or_was_told_is_not_unread(line: str, level: int | None) -> None:
    assert not troubled(line, level)


@with_each(UNKNOWN)
def test_trouble_of_an_unknown_form_is_unread(line: str) -> None:
    assert kind_of(line) is None
    assert [troubled(line, level) for level in (None, 3, WARNING, 6)] == [True, True, True, False]


def test_a_warning_without_a_word_of_trouble_is_unread_where_its_level_says_so() -> None:
    line = "nvidia-nvswitch3: Lane 4 turned purple"
    assert [troubled(line, level) for level in (None, WARNING, 5)] == [False, True, False]


class LoggingMachine(Machine):
    """A machine whose kernel says more."""

    def __init__(self, *lines: str) -> None:
        super().__init__(MACHINES / "dgx")
        self.logged = list(lines)

    def log_lines(self, path: str) -> list[str]:
        if path != KMSG:
            raise FileNotFoundError(path)
        return self.logged


def test_a_line_of_unknown_form_is_counted_with_its_words_and_no_name() -> None:
    reading = KernelLog(
        LoggingMachine(
            "3,1,2,-;NVRM: kgspFoo_GH100: unable to move pid=42, name=bob, of 'alice-secret'",
            "6,2,2,-;NVRM: kgspFoo_GH100: unable, but only for information",
            "4,3,2,-;mlx5_core x[42]: segfault at 0 ip 0 sp 0 error 4",
        ),
        Settings(),
    ).read()
    assert [(one.kind.what, one.example) for one in reading.unread] == [
        ("kernel_line", "NVRM: kgspFoo_GH0: unable to move pid=0, name=a, of 'a-a'")
    ]


def test_an_xid_of_a_gpu_that_is_not_on_the_bus_is_unread() -> None:
    line = "3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    reading = KernelLog(LoggingMachine(line), Settings()).read()
    assert [one.kind.what for one in reading.unread] == ["kernel_line"]


def test_xids_beyond_the_bound_are_unread() -> None:
    lines = [f"3,{n},2,-;NVRM: Xid (PCI:0000:1b:00): {n}, pid=1" for n in range(1000, 1070)]
    reading = KernelLog(LoggingMachine(*lines), Settings()).read()
    found = [one.kind.what for one in reading.unread]
    assert (found.count("xids"), found.count("xid"), len(found)) == (6, 70, 76)


STRANGE = {"nasty": ["NVRM: Xid (PCI:0:0:0): 0, x"]}
"""What a test machine's kernel really says in no form that is known, by the machine's name."""


@with_each(sorted(path.parent.name for path in MACHINES.glob("*/answers.json")))
def test_no_ordinary_line_of_a_test_machine_is_unread(machine: str) -> None:
    node = Machine(MACHINES / machine)
    source = KernelLog(node, Settings())
    with contextlib.suppress(FileNotFoundError):
        source.read()
        node.step()
        assert [one.example for one in source.read().unread] == STRANGE.get(machine, [])


def test_the_level_of_a_record_is_its_first_digit() -> None:
    assert level_of(KMSG, "3,1,2,-;NVRM: x") == 3
    assert level_of(KMSG, "30,1,2,-;systemd[1]: x") is None
    assert level_of("/var/log/syslog", "3,1,2,-;NVRM: x") is None


def test_the_daemon_of_gpfs_is_believed_of_its_own_errors_alone() -> None:
    start = "Nov 22 12:00:00 node-1"
    assert message_of("/var/log/messages", f"{start} mmfs: [E] Disk lost") == "mmfs: [E] Disk lost"
    assert message_of("/var/log/messages", f"{start} mmfsd: NVRM: Xid") is None
    assert kind_of("mmfs: NVRM: Xid (PCI:0000:1b:00): 79, x") is None


@with_each(
    [
        "Nov  1 12:00:00 node-1 kernel: ",
        "Nov 22 12:00:00 node-1 kernel: [  123.456789] ",
        "Nov 22 12:00:00 node-1 kernel: [123456.789012][T4242] ",
        "2026-11-22T12:00:00.123456+00:00 node-1 kernel: [  123.456789][    C7] ",
        "2026-11-22T12:00:00Z node-1 kernel: ",
    ]
)
def test_a_line_of_syslog_begins_in_many_ways(start: str) -> None:
    assert message_of("/var/log/syslog", f"{start}{LINES['xid'][0]}") == LINES["xid"][0]


@with_each(list(zip(LINES["xid"], ("94", "79", "14"), strict=True)))
def test_an_xid_tells_its_gpu(line: str, xid: str) -> None:
    match = XID.match(line)
    assert match is not None
    assert (match["address"], match["xid"]) == ("0000:01:00", xid)
