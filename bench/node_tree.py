"""A synthetic node as a folder of files: eight GPUs at work on a machine with everything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CORES = 128
DISKS = 20
PORTS = 8
LUSTRES = 4
GPUS = 8
THREADS = 300
LOADERS = 16
HERTZ = 100
"""Ticks a second of the times in /proc."""

COUNTERS = """
port_xmit_data port_rcv_data port_xmit_wait symbol_error link_error_recovery link_downed
port_rcv_errors port_xmit_discards port_rcv_remote_physical_errors local_link_integrity_errors
excessive_buffer_overrun_errors port_xmit_packets port_rcv_packets port_rcv_switch_relay_errors
port_xmit_constraint_errors port_rcv_constraint_errors VL15_dropped
unicast_xmit_packets unicast_rcv_packets multicast_xmit_packets multicast_rcv_packets
""".split()  # noqa: SIM905
HW_COUNTERS = """
np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored out_of_sequence packet_seq_err
local_ack_timeout_err implied_nak_seq_err rnr_nak_retry_err out_of_buffer duplicate_request
roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps lifespan
""".split()  # noqa: SIM905
NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls
"""
LLITE = """\
snapshot_time             1700000000.123456 secs.nsecs
read_bytes                123456 samples [bytes] 4096 4194304 98765432100
write_bytes               23456 samples [bytes] 4096 4194304 8765432100
open                      45678 samples [usec] 10 20000 456789012 99999999999
close                     45670 samples [usec] 5 10000 56789012 9999999999
getattr                   98765 samples [usec] 1 9000 87654321 999999999
setattr                   12 samples [usec] 1 900 876 99999
statfs                    100 samples [usec] 1 900 8765 999999
mkdir                     3 samples [usec] 1 900 876 99999
unlink                    4 samples [usec] 1 900 876 99999
"""
IMPORT = """\
import:
    name: {target}
    target: {target}_UUID
    state: FULL
    connect_flags: [ write_grant, server_lock, version ]
    import_flags: [ replayable, pingable, connect_tried ]
    connection:
       failover_nids: [ 10.0.0.1@o2ib ]
       current_connection: 10.0.0.1@o2ib
       connection_attempts: 1
       generation: 1
       in-progress_invalidations: 0
       idle: 1 sec
    rpcs:
       inflight: 3
       unregistering: 0
       timeouts: 0
       avg_waittime: 812 usec
    service_estimates:
       services: 1 sec
       network: 1 sec
    transactions:
       last_replay: 0
       peer_committed: 0
       last_checked: 0
"""
RPC_STATS = """\
snapshot_time             1700000000.123456 secs.nsecs
req_waittime              345678 samples [usec] 50 900000 276543210 99999999999
req_active                345678 samples [reqs] 1 12 456789 999999
read_bytes                123456 samples [bytes] 4096 4194304 98765432100
ost_read                  123456 samples [usec] 50 900000 176543210 99999999999
"""


@dataclass(slots=True)
class NodeTree:
    """The folder, and the counters that go on while the node is watched."""

    root: Path
    ticks: int = 1_000_000

    def main_process(self, gpu: int) -> int:
        """The process that trains on a GPU."""
        return 10_000 + 1_000 * gpu

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def build(self) -> None:
        self._system()
        (self.root / "proc/self").symlink_to("1")
        self._disks()
        self._network()
        self._lustre()
        for gpu in range(GPUS):
            self._gpu(gpu)
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let every core and training process be busy for some time."""
        self.ticks += round(seconds * HERTZ)
        self._write_whole("/proc/stat", _proc_stat(self.ticks))
        for gpu in range(GPUS):
            main = self.main_process(gpu)
            self._write_whole(f"/proc/{main}/stat", _stat(main, 1, self.ticks))
            self._write_whole(f"/proc/{main}/task/{main}/stat", _stat(main, 1, self.ticks))

    def _write_whole(self, path: str, text: str) -> None:
        """Replace a file at once, so that no reader sees half of it."""
        self.write(path + ".new", text)
        (self.root / (path + ".new").lstrip("/")).replace(self.root / path.lstrip("/"))

    def _system(self) -> None:
        self.write("/proc/loadavg", "96.10 95.00 94.00 97/5000 4242\n")
        names = "MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Dirty"
        more = "Writeback AnonPages Mapped Shmem Slab SReclaimable SUnreclaim SwapTotal SwapFree"
        huge = "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
        meminfo = "".join(f"{name}:  123456789 kB\n" for name in f"{names} {more}".split())
        self.write("/proc/meminfo", meminfo + huge)
        counters = "pgpgin pgpgout pswpin pswpout pgfault pgmajfault oom_kill numa_hit numa_miss"
        filler = "".join(f"nr_filler_{at} 123456\n" for at in range(150))
        vmstat = "".join(f"{name} 12345678\n" for name in counters.split())
        self.write("/proc/vmstat", filler + vmstat)
        for resource in ("cpu", "io", "memory"):
            self.write(f"/proc/pressure/{resource}", _pressure())
        half = CORES // 2
        for node in range(2):
            cpus = f"{node * half}-{node * half + half - 1}\n"
            self.write(f"/sys/devices/system/node/node{node}/cpulist", cpus)
            self.write(
                f"/sys/devices/system/node/node{node}/meminfo",
                f"Node {node} MemTotal: 123456 kB\nNode {node} MemFree: 23456 kB\n",
            )

    def _disks(self) -> None:
        lines = []
        for disk in range(DISKS):
            name = f"nvme{disk}n1"
            numbers = "123456 12 98765432 45678 23456 34 87654321 56789 2 34567 102467"
            numbers += " 0 0 0 0 0 0"
            lines += [f" 259 {2 * disk} {name} {numbers}"]
            lines += [f" 259 {2 * disk + 1} {name}p1 {numbers}"]
            self.write(f"/sys/block/{name}/size", "7501476528\n")
            hwmon = f"/sys/class/nvme/nvme{disk}/hwmon{disk}"
            self.write(f"{hwmon}/temp1_input", "41850\n")
            self.write(f"{hwmon}/name", "nvme\n")
        self.write("/proc/diskstats", "\n".join(lines) + "\n")
        mounts = ["22 1 259:1 / / rw,noatime - ext4 /dev/nvme0n1p1 rw"]
        mounts += [
            f"3{at} 22 0:{50 + at} / /lustre{at} rw - lustre o2ib:/fs{at} rw" for at in range(4)
        ]
        mounts += ["40 22 0:60 / /dev/shm rw - tmpfs tmpfs rw,size=1073741824"]
        self.write("/proc/1/mountinfo", "\n".join(mounts) + "\n")
        self.write("/proc/1/mountstats", "device tmpfs mounted on /dev/shm with fstype tmpfs\n")
        for at in range(LUSTRES):
            (self.root / f"lustre{at}").mkdir()
        (self.root / "dev/shm").mkdir(parents=True)

    def _network(self) -> None:
        names = ["lo", "eth0", "eth1", *(f"ib{port}" for port in range(PORTS))]
        line = "123456789012 987654321 0 12 0 0 0 4321 23456789012 87654321 0 0 0 0 0 0"
        for place in ("/proc/1/net", "/proc/net"):
            self.write(f"{place}/dev", NET_DEV + "".join(f"{name:>6}: {line}\n" for name in names))
            for family in ("snmp", "netstat"):
                self.write(f"{place}/{family}", _network_statistics(family))
            self.write(f"{place}/snmp6", "Ip6InReceives 1\n")
        for at, name in enumerate(names[1:]):
            folder = f"/sys/class/net/{name}"
            self.write(f"{folder}/speed", "400000\n")
            self.write(f"{folder}/operstate", "up\n")
            self.write(f"{folder}/carrier", "1\n")
            self.write(f"{folder}/carrier_changes", "2\n")
            self.write(f"{folder}/type", "32\n" if name.startswith("ib") else "1\n")
            self.write(f"{folder}/mtu", "4096\n")
            self.write(f"{folder}/device/uevent", f"PCI_SLOT_NAME={_nic(at)}\n")
        for port in range(PORTS):
            folder = f"/sys/class/infiniband/mlx5_{port}/ports/1"
            for name, value in (("board_id", "MT_0"), ("fw_ver", "28.39"), ("hca_type", "MT4129")):
                self.write(f"/sys/class/infiniband/mlx5_{port}/{name}", f"{value}\n")
            self.write(f"{folder}/rate", "400 Gb/sec (4X NDR)\n")
            self.write(f"{folder}/state", "4: ACTIVE\n")
            self.write(f"{folder}/phys_state", "5: LinkUp\n")
            self.write(f"{folder}/link_layer", "InfiniBand\n")
            for counter in COUNTERS:
                self.write(f"{folder}/counters/{counter}", "123456789\n")
            for counter in HW_COUNTERS:
                self.write(f"{folder}/hw_counters/{counter}", "12345\n")
            self._pci(_nic(port + 2), "0x020700", "0x15b3", port)
            name = f"mlx5_{port}"
            self.write(f"/sys/bus/pci/devices/{_nic(port + 2)}/infiniband/{name}/node_type", "1\n")

    def _pci(self, bus_id: str, kind: str, vendor: str, at: int) -> None:
        root = f"/sys/devices/pci0000:{at:02x}/0000:{at:02x}:01.0/{bus_id}/class"
        self.write(root, f"{kind}\n")
        folder = f"/sys/bus/pci/devices/{bus_id}"
        values = {
            "class": kind,
            "vendor": vendor,
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "numa_node": str(at // 4),
            "uevent": f"PCI_SLOT_NAME={bus_id}",
        }
        for name, value in values.items():
            self.write(f"{folder}/{name}", f"{value}\n")
        for severity, total in (
            ("correctable", "COR"),
            ("fatal", "FATAL"),
            ("nonfatal", "NONFATAL"),
        ):
            kinds = "".join(f"{name} 0\n" for name in ("RxErr", "BadTLP", "BadDLLP", "Timeout"))
            self.write(f"{folder}/aer_dev_{severity}", f"{kinds}TOTAL_ERR_{total} 0\n")

    def _lustre(self) -> None:
        for at in range(LUSTRES):
            llite = f"fs{at}-ffff9f0e81234000"
            self.write(f"/proc/fs/lustre/llite/{llite}/stats", LLITE)
            for target in range(8):
                name = f"fs{at}-OST{target:04x}"
                folder = f"/proc/fs/lustre/osc/{name}-osc-ffff9f0e81234000"
                self.write(f"{folder}/import", IMPORT.format(target=name))
                self.write(f"{folder}/stats", RPC_STATS)
            folder = f"/proc/fs/lustre/mdc/fs{at}-MDT0000-mdc-ffff9f0e81234000"
            self.write(f"{folder}/import", IMPORT.format(target=f"fs{at}-MDT0000"))
            self.write(f"{folder}/stats", RPC_STATS)

    def _gpu(self, gpu: int) -> None:
        main = self.main_process(gpu)
        loaders = [main + 500 + at for at in range(LOADERS)]
        group = f"/kubepods.slice/kubepods-pod{gpu}.slice/cri-containerd-{gpu:064x}.scope"
        self._process(main, 1, THREADS, group, loaders)
        for loader in loaders:
            self._process(loader, main, 5, group, [])
        folder = f"/sys/fs/cgroup{group}"
        for resource in ("cpu", "io", "memory"):
            self.write(f"{folder}/{resource}.pressure", _pressure())
        self.write(
            f"{folder}/cpu.stat",
            "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\n"
            "nr_periods 1000\nnr_throttled 10\nthrottled_usec 12345\n",
        )
        self.write(f"{folder}/cpu.max", "1600000 100000\n")
        self.write(f"{folder}/memory.max", "274877906944\n")
        self.write(f"{folder}/memory.current", "174877906944\n")
        self.write(f"{folder}/memory.stat", "anon 123456789\nfile 23456789\nshmem 3456789\n")
        self.write(f"{folder}/memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        self._pci(f"0000:{0x10 + gpu:02x}:00.0", "0x030200", "0x10de", gpu)

    def _process(
        self, pid: int, parent: int, threads: int, group: str, children: list[int]
    ) -> None:
        folder = f"/proc/{pid}"
        self.write(f"{folder}/stat", _stat(pid, parent, self.ticks))
        self.write(f"{folder}/comm", "python\n")
        self.write(
            f"{folder}/status",
            f"Name:\tpython\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\n"
            "RssAnon:\t  123456 kB\nVmSwap:\t       0 kB\n",
        )
        self.write(f"{folder}/cgroup", f"0::{group}\n")
        self.write(f"{folder}/io", "rchar: 1\nwchar: 1\nread_bytes: 12345\nwrite_bytes: 2345\n")
        self.write(
            f"{folder}/mountinfo",
            "600 590 0:500 / / rw - overlay overlay rw\n"
            f"612 600 0:{300 + pid // 1000} / /dev/shm rw - tmpfs shm rw,size=1073741824\n",
        )
        (self.root / f"proc/{pid}/root/dev/shm").mkdir(parents=True)
        for thread in range(threads):
            self.write(f"{folder}/task/{pid + thread}/stat", _stat(pid + thread, parent, 4242))
        self.write(f"{folder}/task/{pid}/children", " ".join(map(str, children)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let time go on in the files."""
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(1.0):
                self.advance(1.0)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _nic(at: int) -> str:
    return f"0000:{0x40 + at:02x}:00.0"


def _pressure() -> str:
    return (
        "some avg10=1.00 avg60=1.00 avg300=1.00 total=123456789\n"
        "full avg10=0.50 avg60=0.50 avg300=0.50 total=23456789\n"
    )


def _proc_stat(ticks: int) -> str:
    cores = "".join(
        f"cpu{core} {ticks} 0 {ticks // 10} {ticks // 2} 12 0 3 0 0 0\n" for core in range(CORES)
    )
    interrupts = " ".join(["0"] * 2000)
    return (
        f"cpu  {ticks * CORES} 0 {ticks * CORES // 10} {ticks * CORES // 2} 12 0 3 0 0 0\n{cores}"
        f"intr 123456 {interrupts}\nctxt {ticks * 1000}\nbtime 1700000000\nprocesses 4242\n"
        "procs_running 97\nprocs_blocked 1\nsoftirq 1 2 3 4 5 6 7 8 9 10 11\n"
    )


def _stat(pid: int, parent: int, ticks: int) -> str:
    return (
        f"{pid} (python) R {parent} {pid} {pid} 0 -1 4194304 1 2 3 4 {ticks} 12 0 0 20 0 300 0 "
        "4242 123456789 12345 18446744073709551615 1 1 0 0 0 0 0 16781312 17 0 0 0 17 3 0 0 0 0\n"
    )


def _network_statistics(family: str) -> str:
    if family == "snmp":
        names = "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails"
        names += " EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors"
        head = "Tcp:"
    else:
        names = "SyncookiesSent ListenOverflows ListenDrops TCPTimeouts TCPLostRetransmit"
        head = "TcpExt:"
    values = " ".join("1234" for _ in names.split())
    return f"{head} {names}\n{head} {values}\n"
