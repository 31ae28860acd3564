"""Every check of the audit: where all is well, where it is not, and where nothing can be told."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from gpunode.audit.source import CHECKS, OK, Audit, AuditResults, Result, audit
from gpunode.cli.audit import audit_table
from gpunode.cli.main import main
from gpunode.config.daemon import Settings
from gpunode.driver.driver import (
    Fabric,
    Gpu,
    Identity,
    NvLink,
    PcieLink,
    PowerLimits,
    Process,
    RemappedRows,
    Unsupported,
)
from gpunode.node.descriptors import LACKS, DescriptorsNode
from gpunode.node.local import LocalNode
from gpunode.node.node import Filesystem
from tests.machine import MachineDriver
from tests.nccl.test_nccl import recorded
from tests.tenant import says_who

PID = 4242
NCCL_LOG = f"/proc/{PID}/root/tmp/nccl.{PID}.log"
NCCL_SOCKETS = f"""\
n:{PID}:7 [0] NCCL INFO ncclCommInitRankConfig comm 0x1d rank 0 nranks 16 cudaDev 0 nvmlDev 0 \
busId 60 commId 0x7c - Init START
n:{PID}:7 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/Socket/0
"""
NIC = "0000:3b:00.0"
GPU_BUS = "0000:00:06.0"
"""The GPU of the recorded logs: busId 60."""
WORKER = 4243
PORT, SWITCH = "0000:00:01.0", "0000:01:00.0"
"""A root port, and the upstream port of the PCI Express switch below it."""
WANTED = "/etc/systemd/system/multi-user.target.wants/nvidia-mig-manager.service"

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


def stat(pid: int, name: str, nice: int = 0, policy: int = 0) -> str:
    """A process's stat file: fields 19 and 41 are its nice value and policy."""
    fields = ["S", "1", *["0"] * 14, str(nice), "1", "0", "5000", *["0"] * 18, str(policy)]
    return f"{pid} ({name}) {' '.join(fields)} 0 0 0\n"


GOOD_FILES = {
    "/proc/stat": "".join(f"cpu{core} 1 0 1 1 0 0 0 0 0 0\n" for core in range(8)),
    "/proc/meminfo": "MemTotal: 1000000 kB\nSwapTotal: 1000 kB\nSwapFree: 1000 kB\n",
    "/proc/cmdline": "ro quiet iommu=pt\n",
    "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module 580.159\n",
    "/proc/sys/vm/swappiness": "10\n",
    "/proc/sys/vm/zone_reclaim_mode": "0\n",
    "/proc/sys/vm/max_map_count": "1048576\n",
    "/proc/sys/kernel/numa_balancing": "0\n",
    "/proc/sys/net/core/rmem_max": "67108864\n",
    "/proc/sys/net/core/wmem_max": "67108864\n",
    "/proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
    "/proc/interrupts": f" 77: 1 2 IR-PCI-MSI 1048576-edge mlx5_comp0@pci:{NIC}\n",
    "/proc/irq/77/smp_affinity_list": "2\n",
    "/proc/1/mountinfo": "22 1 259:1 / / rw,noatime - ext4 /dev/nvme0n1p1 rw\n",
    f"/proc/{PID}/limits": LIMITS,
    f"/proc/{PID}/status": "Name:\tpython\nCpus_allowed_list:\t0-3\n",
    f"/proc/{PID}/cgroup": "0::/training\n",
    f"/proc/{PID}/stat": stat(PID, "python"),
    f"/proc/{PID}/task/{PID}/children": f"{WORKER} ",
    f"/proc/{WORKER}/stat": stat(WORKER, "pt_data_worker"),
    f"/proc/{PID}/environ": "OMP_NUM_THREADS=4\0HOME=/root\0NCCL_DEBUG_FILE=/tmp/nccl.%p.log\0",
    f"/proc/{PID}/root/tmp/nccl.{PID}.log": recorded("h200x2", PID),
    "/sys/fs/cgroup/training/cpu.stat": "nr_periods 100\nnr_throttled 0\nthrottled_usec 0\n",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
    "/sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "0\n",
    "/sys/devices/system/cpu/cpu0/cpuidle/state0/disable": "0\n",
    "/sys/devices/system/cpu/cpu0/cpuidle/state1/latency": "600\n",
    "/sys/devices/system/cpu/cpu0/cpuidle/state1/disable": "1\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
    "/sys/devices/system/cpu/isolated": "\n",
    "/sys/devices/system/node/node0/cpulist": "0-3\n",
    "/sys/devices/system/node/node1/cpulist": "4-7\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never\n",
    "/sys/class/iommu/dmar0/type": "\n",
    "/sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline\n",
    "/sys/block/nvme0n1/queue/read_ahead_kb": "4096\n",
    "/sys/class/net/eth0/speed": "400000\n",
    "/sys/class/net/eth0/type": "1\n",
    "/sys/class/net/eth0/mtu": "9000\n",
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "/sys/bus/pci/devices/0000:3b:00.0/class": "0x020000\n",
    "/sys/bus/pci/devices/0000:3b:00.0/local_cpulist": "0-3\n",
    "/sys/bus/pci/devices/0000:3b:00.0/current_link_speed": "32.0 GT/s PCIe\n",
    "/sys/bus/pci/devices/0000:3b:00.0/max_link_speed": "32.0 GT/s PCIe\n",
    "/sys/bus/pci/devices/0000:3b:00.0/current_link_width": "16\n",
    "/sys/bus/pci/devices/0000:3b:00.0/max_link_width": "16\n",
    f"/sys/bus/pci/devices/{NIC}/infiniband/mlx5_0/node_type": "1: CA\n",
    f"/sys/bus/pci/devices/{GPU_BUS}/vendor": "0x10de\n",
    f"/sys/bus/pci/devices/{GPU_BUS}/max_link_speed": "32.0 GT/s PCIe\n",
    f"/sys/bus/pci/devices/{GPU_BUS}/max_link_width": "16\n",
    f"/sys/bus/pci/devices/{SWITCH}/current_link_speed": "32.0 GT/s PCIe\n",
    f"/sys/bus/pci/devices/{SWITCH}/current_link_width": "16\n",
    f"/sys/bus/pci/devices/{SWITCH}/class": "0x060400\n",
    f"/sys/devices/pci0000:00/{PORT}/{SWITCH}/0000:02:01.0/{GPU_BUS}/class": "0x030200\n",
    f"/sys/devices/pci0000:00/{PORT}/{SWITCH}/0000:02:02.0/{NIC}/class": "0x020000\n",
    WANTED: "",
    "/sys/bus/pci/devices/0000:00:06.0/class": "0x030200\n",
    "/sys/bus/pci/devices/0000:00:06.0/local_cpulist": "0-3\n",
    "/sys/module/nvidia/version": "580.159\n",
    "/sys/module/nvidia_uvm/version": "580.159\n",
    "/sys/class/infiniband/mlx5_0/board_id": "MT_0000000838\n",
    "/sys/class/infiniband/mlx5_0/fw_ver": "28.39.2048\n",
    "/sys/class/infiniband/mlx5_1/board_id": "MT_0000000838\n",
    "/sys/class/infiniband/mlx5_1/fw_ver": "28.39.2048\n",
    "/sys/class/infiniband/mlx5_2/board_id": "MT_0000000359\n",
    "/sys/class/infiniband/mlx5_2/fw_ver": "22.41.1000\n",
}
GOOD_GPU: dict[str, Any] = {
    "persistence": True,
    "power_limits": PowerLimits(700.0, 700.0),
    "clock_events": ["gpu_idle"],
    "ecc_errors": {"corrected": 0.0, "uncorrected": 0.0},
    "remapped_rows": RemappedRows(0, 0, False, False),
    "recovery_action": "none",
    "pcie_link": PcieLink(5, 16, 5, 16),
    "nvlinks": [NvLink(0, True, None, {}), NvLink(1, True, None, {})],
    "fabric": Fabric("completed", {}),
    "firmware": {"gsp": "580.159.04", "inforom": "G525.0225.00.05"},
    "processes": [Process(PID, None, "compute"), Process(PID, None, "mps")],
}
GOOD_SHM = Filesystem(2**34, 2**34, 2**34)

FAULTS: dict[str, dict[str, Any]] = {
    "cpu_governor": {"/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n"},
    "cpu_idle_states": {"/sys/devices/system/cpu/cpu0/cpuidle/state1/disable": "0\n"},
    "clocksource": {
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
    },
    "transparent_huge_pages": {
        "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    },
    "transparent_huge_pages_defrag": {
        "/sys/kernel/mm/transparent_hugepage/defrag": "[always] defer madvise never\n",
    },
    "swappiness": {"/proc/sys/vm/swappiness": "60\n"},
    "swap_used": {
        "/proc/meminfo": "MemTotal: 1000000 kB\nSwapTotal: 90000 kB\nSwapFree: 1000 kB\n",
    },
    "numa_balancing": {"/proc/sys/kernel/numa_balancing": "1\n"},
    "zone_reclaim": {"/proc/sys/vm/zone_reclaim_mode": "1\n"},
    "memory_maps": {"/proc/sys/vm/max_map_count": "65530\n"},
    "iommu": {"/proc/cmdline": "ro quiet intel_iommu=on\n"},
    "io_scheduler": {"/sys/block/nvme0n1/queue/scheduler": "none [mq-deadline]\n"},
    "read_ahead": {"/sys/block/nvme0n1/queue/read_ahead_kb": "16\n"},
    "access_times": {"/proc/1/mountinfo": "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n"},
    "mtu": {"/sys/class/net/eth0/mtu": "1500\n"},
    "tcp_buffers": {"/proc/sys/net/core/rmem_max": "212992\n"},
    "nic_interrupts": {"/proc/irq/77/smp_affinity_list": "4-7\n"},
    "infiniband_ports": {"/sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"},
    "gpudirect_rdma": {"/proc/modules": "nvidia 16384 0 - Live 0x0\n"},
    "nic_pcie_link": {"/sys/bus/pci/devices/0000:3b:00.0/current_link_width": "8\n"},
    "persistence_mode": {"persistence": False},
    "gpu_power_limit": {"power_limits": PowerLimits(500.0, 700.0)},
    "gpu_clocks": {"clock_events": ["clocks_setting"]},
    "ecc": {"ecc_errors": None},
    "gpu_memory_repair": {"remapped_rows": RemappedRows(1, 0, True, False)},
    "gpu_recovery": {"recovery_action": "reset"},
    "gpu_pcie_link": {"pcie_link": PcieLink(5, 8, 5, 16)},
    "nvlinks": {"nvlinks": [NvLink(0, True, None, {}), NvLink(1, False, None, {})]},
    "fabric_manager": {"fabric": Fabric("in_progress", {})},
    "gpu_firmware": {
        "neighbour": {"firmware": {"inforom": "G525.0200.00.05"}},
        "/proc/stat": "".join(f"cpu{core} 1 0 1 1 0 0 0 0 0 0\n" for core in range(16)),
    },
    "nic_firmware": {"/sys/class/infiniband/mlx5_1/fw_ver": "28.43.1014\n"},
    "driver_versions": {"/sys/module/nvidia_uvm/version": "570.86\n"},
    "locked_memory": {
        f"/proc/{PID}/limits": LIMITS.replace("unlimited            unlimited", "65536   65536"),
    },
    "open_files": {f"/proc/{PID}/limits": LIMITS.replace("1048576 ", "1024 ")},
    "shm_size": {"shm": Filesystem(2**26, 2**26, 2**26)},
    "numa_placement": {f"/proc/{PID}/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n"},
    "cpu_quota": {
        "/sys/fs/cgroup/training/cpu.stat": "nr_periods 100\nnr_throttled 7\nthrottled_usec 9\n",
    },
    "nccl_switched_off": {f"/proc/{PID}/environ": "OMP_NUM_THREADS=4\0NCCL_P2P_DISABLE=1\0"},
    "nccl_transport": {f"/proc/{PID}/environ": "OMP_NUM_THREADS=4\0NCCL_NET=Socket\0"},
    "nccl_sockets": {NCCL_LOG: NCCL_SOCKETS},
    "nccl_shared_memory": {NCCL_LOG: recorded("h200x2_p2p_disabled", PID)},
    "omp_threads": {f"/proc/{PID}/environ": "OMP_NUM_THREADS=4\0MKL_NUM_THREADS=64\0"},
    "cores_per_gpu": {
        "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4\n",
    },
    "congestion_control": {"/proc/sys/net/ipv4/tcp_congestion_control": "reno\n"},
    "rdma_near_gpu": {
        f"/sys/devices/pci0000:00/{PORT}/{SWITCH}/0000:02:02.0/{NIC}/class": None,
        f"/sys/devices/pci0000:00/0000:00:02.0/{NIC}/class": "0x020000\n",
    },
    "gpu_pcie_uplink": {f"/sys/bus/pci/devices/{SWITCH}/current_link_width": "4\n"},
    "mig_layout": {
        WANTED: None,
        "/etc/systemd/system/multi-user.target.wants/ssh.service": "",
    },
    "loader_workers": {
        f"/proc/{PID}/status": "Name:\tpython\nCpus_allowed_list:\t2\n",
        f"/proc/{PID}/task/{PID}/children": f"{WORKER} {WORKER + 1}",
        f"/proc/{WORKER + 1}/stat": stat(WORKER + 1, "pt_data_worker"),
    },
    "cpu_priority": {f"/proc/{WORKER}/stat": stat(WORKER, "pt_data_worker", nice=10)},
    "isolated_cores": {"/sys/devices/system/cpu/isolated": "2-5\n"},
    "mps_share": {
        f"/proc/{PID}/environ": "OMP_NUM_THREADS=4\0CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50\0"
    },
}
"""What to change of the good node so that this check and no other fails."""


class AuditedNode(LocalNode):
    """A folder of files with one GPU, or several, or without."""

    def __init__(
        self, root: Path, *gpus: dict[str, Any] | None, shm: Filesystem = GOOD_SHM
    ) -> None:
        whole = Identity(0, "GPU-1", "NVIDIA H200", GPU_BUS)
        each = [
            AuditedGpu(answers, identity)
            for at, answers in enumerate(gpus)
            if answers is not None
            for identity in (
                replace(whole, index=at, uuid=f"GPU-{at + 1}"),
                replace(whole, index=at, uuid=f"MIG-{at + 1}", mig=True),
            )
        ]
        listed = [cast(Gpu, gpu) for gpu in each]
        super().__init__(root, [MachineDriver(listed)])
        self.shm = shm

    def filesystem(self, path: str) -> Filesystem:
        return self.shm if path.endswith("/root/dev/shm") else super().filesystem(path)


class WithoutDescriptors(LocalNode):
    """A node on which nothing can be opened any more."""

    def read_text(self, path: str) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def list_directory(self, path: str) -> list[str]:
        return [self.read_text(path)]


class AuditedGpu:
    """Answers what it was given; None stands for a sensor that it does not have."""

    def __init__(self, answers: dict[str, Any], identity: Identity) -> None:
        self.answers = answers
        self.identity = identity

    def __getattr__(self, call: str) -> Callable[[], Any]:
        def answer() -> Any:
            if self.answers.get(call) is None:
                raise Unsupported(call)
            return self.answers[call]

        return answer


def node(root: Path, changes: dict[str, Any]) -> AuditedNode:
    for path, text in {**GOOD_FILES, **changes}.items():
        if path.startswith("/") and text is not None:
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if (root / f"proc/{PID}").exists():
        says_who(root / f"proc/{PID}")
    gpu = {**GOOD_GPU, **{k: v for k, v in changes.items() if k in GOOD_GPU}}
    neighbour = {**GOOD_GPU, **changes["neighbour"]} if "neighbour" in changes else None
    return AuditedNode(root, gpu, neighbour, shm=changes.get("shm", GOOD_SHM))


def test_every_check_has_a_fault() -> None:
    assert FAULTS.keys() == {check.name for check in CHECKS}


def test_on_a_good_node_every_check_is_ok(tmp_path: Path) -> None:
    results = audit(node(tmp_path, {}))
    assert [r for r in results if r.status != "ok"] == []


def test_a_fault_fails_its_check_and_no_other(tmp_path: Path) -> None:
    for name, fault in FAULTS.items():
        failed = [r for r in audit(node(tmp_path / name, fault)) if r.status == "failed"]
        assert [result.check for result in failed] == [name]
        assert failed[0].found, name


def test_on_an_empty_node_nothing_fails(tmp_path: Path) -> None:
    results = audit(AuditedNode(tmp_path, None))
    assert [r.check for r in results if r.status == "failed"] == []
    assert {r.check for r in results if r.status == "ok"} <= {"iommu"}
    assert all(result.found for result in results)


def test_without_descriptors_checks_cannot_tell(tmp_path: Path) -> None:
    results = audit(DescriptorsNode(WithoutDescriptors(tmp_path)))
    assert "ok" not in {result.status for result in results}
    assert result_of(results, "swappiness") == ("unknown", LACKS[errno.EMFILE])


def test_what_cannot_be_told_has_no_series(tmp_path: Path) -> None:
    reading = Audit(AuditedNode(tmp_path, None), Settings()).read()
    assert isinstance(reading.detail, AuditResults)
    told = {c.check for c in reading.detail.checks if c.status != "unknown"}
    assert {sample.labels for sample in reading.samples} == {(name,) for name in told}
    assert {sample.metric for sample in reading.samples} <= {OK}


def test_the_command_prints_json_and_ends_with_1_where_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def audited(*options: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["audit", f"--path.rootfs={tmp_path}", *options])
        return ended.value.code, capfd.readouterr().out

    monkeypatch.setenv("COLUMNS", "160")
    node(tmp_path, FAULTS["swappiness"])
    code, told = audited("--json")
    failed = [one["check"] for one in json.loads(told) if one["status"] == "failed"]
    assert (code, failed) == (1, ["swappiness"])
    code, table = audited()
    assert code == 1
    assert "sysctl -w vm.swappiness=10" in table
    node(tmp_path, {})
    main(["audit", f"--path.rootfs={tmp_path}"])


def test_the_table_says_once_why_checks_cannot_tell(tmp_path: Path) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(audit_table(audit(AuditedNode(tmp_path, None))))
    text = console.export_text()
    assert text.count("no GPU") == 1
    assert {check.name for check in CHECKS} <= set(re.findall(r"\w+", text))


def result_of(results: list[Result], check: str) -> tuple[str, str]:
    (result,) = (result for result in results if result.check == check)
    return result.status, result.found


def test_a_virtual_machine_shows_no_switches_and_nothing_is_said_of_them(tmp_path: Path) -> None:
    switch = f"/sys/devices/pci0000:00/{PORT}/{SWITCH}"
    flat: dict[str, Any] = {
        f"{switch}/0000:02:01.0/{GPU_BUS}/class": None,
        f"{switch}/0000:02:02.0/{NIC}/class": None,
        f"/sys/devices/pci0000:00/{GPU_BUS}/class": "0x030200\n",
        f"/sys/devices/pci0000:00/{NIC}/class": "0x020000\n",
    }
    results = audit(node(tmp_path, flat))
    for check in ("rdma_near_gpu", "gpu_pcie_uplink"):
        assert result_of(results, check)[0] == "unknown"


def test_slow_adapters_are_no_adapters_of_the_gpus(tmp_path: Path) -> None:
    slow = {"/sys/class/infiniband/mlx5_0/ports/1/rate": "25 Gb/sec (1X EDR)\n"}
    status, why = result_of(audit(node(tmp_path, slow)), "rdma_near_gpu")
    assert (status, why) == ("unknown", "no InfiniBand or RoCE adapter of 100 Gb/s or more")


def test_the_gpu_operator_s_pod_restores_mig_instances(tmp_path: Path) -> None:
    pod = "/var/log/pods/gpu-operator_nvidia-mig-manager-x7k_0f/mig-manager/0.log"
    results = audit(node(tmp_path, {**FAULTS["mig_layout"], pod: ""}))
    assert result_of(results, "mig_layout") == ("ok", "mig-manager's pod")


def test_a_unit_whose_name_only_contains_mig_restores_nothing(tmp_path: Path) -> None:
    units = "/etc/systemd/system/multi-user.target.wants"
    changes = {**FAULTS["mig_layout"], f"{units}/db-migrate.service": ""}
    assert result_of(audit(node(tmp_path, changes)), "mig_layout")[0] == "failed"


def test_without_workers_their_number_cannot_be_judged(tmp_path: Path) -> None:
    alone = {f"/proc/{PID}/task/{PID}/children": ""}
    assert result_of(audit(node(tmp_path, alone)), "loader_workers")[0] == "unknown"


def test_only_what_gives_way_to_others_fails(tmp_path: Path) -> None:
    gives_way = {(0, 0): "", (-5, 0): "", (0, 2): "", (1, 0): "nice 1", (0, 5): "SCHED_IDLE"}
    for (nice, policy), words in gives_way.items():
        changes = {f"/proc/{PID}/stat": stat(PID, "a (b) c", nice, policy)}
        status, said = result_of(audit(node(tmp_path, changes)), "cpu_priority")
        assert status == ("failed" if words else "ok"), (nice, policy)
        assert words in said


def test_one_isolated_core_for_a_process_is_a_binding(tmp_path: Path) -> None:
    bound = {
        "/sys/devices/system/cpu/isolated": "3-5\n",
        f"/proc/{PID}/status": "Name:\tpython\nCpus_allowed_list:\t3\n",
    }
    assert result_of(audit(node(tmp_path, bound)), "isolated_cores")[0] == "ok"


def test_a_share_of_mps_is_right_where_others_share_the_gpu(tmp_path: Path) -> None:
    changes = {
        **FAULTS["mps_share"],
        "processes": [Process(PID, None, "mps"), Process(PID + 9, None, "mps")],
    }
    assert result_of(audit(node(tmp_path, changes)), "mps_share")[0] == "ok"
