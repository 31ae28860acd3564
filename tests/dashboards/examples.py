"""Nodes on which something is wrong that no tape has, and one that trains with all a site may have.

Each is a node of its own, and all of them are one target for Prometheus.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from dashboards.rules import DECLARED, labels_of
from tests.dashboards.promtool import with_labels
from tests.prometheus.programs import exporter


class Series(NamedTuple):
    """A metric, and those of its labels that matter."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


Given = Mapping[Series, float]
"""Values; of counters, what they gain a second."""

NODE_AND_GPU = {"instance": "training", "gpu": "0", "uuid": "GPU-a"}
HELD_LABELS = {
    "owner_namespace": "research",
    "owner_pod": "llm-worker-0",
    "owner_container": "main",
    "workload": "llm",
}


def series(metric: str, **labels: str) -> Series:
    return Series(metric, tuple(labels.items()))


def is_counter(name: str) -> bool:
    """Whether a series only grows."""
    declared = DECLARED.get(name) or DECLARED.get(name.rpartition("_")[0])
    return (
        declared is not None and declared.kind != "gauge"
    ) or name == "process_cpu_seconds_total"


def known_labels(name: str) -> frozenset[str]:
    """The labels of a series in Prometheus."""
    own = ("workload", "replica") if name == "gpunode_gpu_owner_info" else ()
    return labels_of(name) | frozenset(own)


ADAPTER = {"device": "mlx5_0", "port": "1"}

TRAINING: Given = {
    series("gpunode_gpu_owner_info", **HELD_LABELS): 1.0,
    series("gpunode_gpu_held_up_seconds", cause="data_loading_storage"): 300.0,
    series("gpunode_gpu_process_info", pid="1", rank="0", owner_pod="llm-worker-0"): 1.0,
    series("gpunode_gpu_workload", kind="training"): 1.0,
    series("gpunode_gpu_info", name="NVIDIA H200"): 1.0,
    series("gpunode_gpu_waited_for", reason="cpu_bound"): 1.0,
    **{
        series("gpunode_training_seconds_total", phase=phase): share
        for phase, share in (
            ("step", 0.7),
            ("data", 0.1),
            ("checkpoint", 0.05),
            ("evaluation", 0.05),
            ("compile", 0.05),
            ("other", 0.05),
        )
    },
    series("gpunode_job_memory_anonymous_bytes"): 6e10,
    series("gpunode_job_memory_shmem_bytes"): 2e10,
    series("gpunode_job_memory_limit_bytes"): 1e11,
    series("gpunode_filefd_allocated"): 1e4,
    series("gpunode_filefd_maximum"): 1e6,
    series("gpunode_training_step_median_seconds"): 0.5,
    series("gpunode_training_step_baseline_seconds"): 0.4,
    series("gpunode_training_mfu_ratio"): 0.42,
    series("gpunode_training_loss"): 2.1,
    series("gpunode_training_loss_best"): 2.0,
    series("gpunode_training_loss_finite"): 1.0,
    series("gpunode_training_kernel_seconds", kernel="gemm"): 0.2,
    series("gpunode_torch_memory_reserved_bytes"): 1.2e11,
    series("gpunode_torch_alloc_retries_total"): 0.1,
    series("gpunode_torch_ooms_total"): 0.1,
    series("gpunode_gpu_memory_size_bytes"): 1.5e11,
    series("gpunode_gpu_memory_reserved_bytes"): 1e9,
    series("gpunode_gpu_memory_used_bytes"): 1.3e11,
    series("gpunode_gpu_seconds_total", state="compute"): 0.6,
    series("gpunode_gpu_seconds_total", state="starved"): 0.4,
    series("gpunode_nccl_channels", communicator="c", transport="NET/IB"): 16.0,
    series("gpunode_nccl_setting_info", name="NCCL_IB_HCA", value="mlx5"): 1.0,
    series("gpunode_gpu_nvlink_speed_bytes_per_second"): 4.5e11,
    series("gpunode_nccl_stalled_communicators"): 0.0,
    series("gpunode_nccl_communicators"): 1.0,
    series("gpunode_lustre_bytes_total", filesystem="scratch", direction="read"): 2e9,
    series("gpunode_lustre_rpcs_total", filesystem="scratch", server="ost"): 900.0,
    series("gpunode_lustre_rpc_seconds_total", filesystem="scratch", server="ost"): 40.0,
    series("gpunode_lustre_rpcs_in_flight", filesystem="scratch", server="ost"): 12.0,
    series("gpunode_nfs_bytes_total", mountpoint="/home", direction="read"): 1e8,
    series("gpunode_nfs_requests_total", mountpoint="/home", operation="READ"): 100.0,
    series("gpunode_nfs_rtt_seconds_total", mountpoint="/home", operation="READ"): 0.4,
    series("gpunode_nfs_requests_in_flight", mountpoint="/home"): 2.0,
    **{
        series("gpunode_infiniband_bytes_total", device="mlx5_0", port="1", direction=way): 2e10
        for way in ("received", "sent")
    },
    series("gpunode_infiniband_rate_bytes_per_second", device="mlx5_0", port="1"): 5e10,
    series("gpunode_infiniband_active", device="mlx5_0", port="1"): 1.0,
    series(
        "gpunode_infiniband_congestion_events_total", device="mlx5_0", port="1", kind="cnp"
    ): 300.0,
    series("gpunode_infiniband_errors_total", device="mlx5_0", port="1", kind="symbol"): 5.0,
    series("gpunode_infiniband_transport_errors_total", **ADAPTER, kind="timeout"): 1.0,
    series("gpunode_infiniband_retransmitted_packets_total", **ADAPTER): 1.0,
    series("gpunode_tcp_segments_total", kind="first"): 5000.0,
    series("gpunode_tcp_segments_total", kind="retransmitted"): 20.0,
    series("gpunode_gpu_ecc_errors_total", kind="uncorrected"): 0.1,
    series("gpunode_gpu_row_remap_pending"): 1.0,
    series("gpunode_gpu_row_remap_failed"): 1.0,
    series("gpunode_gpu_row_remaps_total", kind="uncorrected"): 0.01,
    series("gpunode_client_messages_total", result="accepted"): 2.0,
    series("gpunode_node_info", driver="570.133.20", kernel="5.15.0-1063-nvidia"): 1.0,
    series("gpunode_job_version_info", torch="2.9.1+cu128", nccl="2.27.5"): 1.0,
    series("kube_node_spec_unschedulable", node="training"): 1.0,
    series("kube_node_labels", node="training", label_topology_kubernetes_io_rack="r07"): 1.0,
}
"""One node of a training job with all that a site may have."""

BROKEN: Given = {
    series("gpunode_clock_timestamp_seconds"): 1.0,
    series("gpunode_gpu_info", name="NVIDIA H200"): 1.0,
    series(
        "gpunode_fault_start_timestamp_seconds", part="gpu", reason="XID 79", severity="page"
    ): 0.0,
    series("gpunode_gpu_held_up_seconds", cause="gpu_lost"): 60.0,
    series("gpunode_gpu_xid_last_timestamp_seconds", xid="79"): 1.0,
    series("gpunode_gpu_ecc_errors_total", kind="uncorrected"): 0.1,
    series("gpunode_gpu_row_remaps_total", kind="uncorrected"): 0.1,
    series("gpunode_gpu_row_remap_banks", spare="none"): 1.0,
    series("gpunode_gpu_recovery_action", action="reset"): 1.0,
    series("gpunode_gpu_throttled_seconds_total", reason="hw_thermal"): 0.5,
    series("gpunode_gpu_temperature_celsius"): 91.0,
    series("gpunode_gpu_seconds_total", state="unknown"): 1.0,
    series("gpunode_gpu_nvlink_errors_total", kind="replay"): 10.0,
    series("gpunode_gpu_c2c_errors_total", kind="crc"): 1.0,
    series("gpunode_gpu_memory_fault_info", fault="row_remap"): 1.0,
    series("gpunode_gpu_nvlink_link_errors_total", link="3", kind="replay"): 1.0,
    series("gpunode_gpu_pcie_errors_total", kind="fatal"): 1.0,
    series("gpunode_gpu_row_remap_failed"): 1.0,
    series("gpunode_pcie_link_degraded", bus_id="0000:17:00.0", kind="gpu"): 1.0,
    series("gpunode_source_up", source="gpm"): 0.0,
    series("gpunode_source_late_reads_total", source="gpm"): 1.0,
    series("gpunode_source_skipped_reads_total", source="gpm"): 1.0,
    series("gpunode_unread_total", source="pods", what="pod"): 1.0,
    series("gpunode_refused_total", source="pods", what="pod"): 1.0,
    series("gpunode_web_config_last_reload_success"): 0.0,
}
"""A node with a broken GPU, and an exporter that cannot read all."""

FAULTY: Given = {
    series("gpunode_clock_timestamp_seconds"): 1.0,
    **{
        series(
            "gpunode_fault_start_timestamp_seconds",
            gpu="",
            uuid="",
            part=part,
            name=name,
            reason=why,
            severity=how,
        ): 0.0
        for part, name, why, how in (
            ("network", "mlx5_0/1", "down", "ticket"),
            ("filesystem", "/data", "unanswering", "page"),
        )
    },
    series("gpunode_infiniband_errors_total", **ADAPTER, kind="symbol"): 5.0,
    series("gpunode_infiniband_active", **ADAPTER): 0.0,
    series("gpunode_network_drops_total", interface="eth0", direction="received"): 50.0,
    series("gpunode_kernel_log_events_total", kind="disk_error"): 1.0,
    series("gpunode_audit_ok", check="swap"): 0.0,
    series("gpunode_node_drained"): 1.0,
    series("kube_node_labels", node="faulty", label_topology_kubernetes_io_rack="r07"): 1.0,
    series(
        "gpunode_nccl_bus_bandwidth_bytes_per_second", collective="AllReduce", gpus="8", nodes="2"
    ): 2e11,
    series(
        "gpunode_nccl_expected_bus_bandwidth_bytes_per_second",
        collective="AllReduce",
        gpus="8",
        nodes="2",
    ): 4e11,
}
"""A node of which parts are broken that all its GPUs share."""

NODES: dict[str, Given] = {
    "training": TRAINING,
    "updated": {series("gpunode_node_info", driver="580.159.04", kernel="5.15.0-1063-nvidia"): 1.0},
    "broken": BROKEN,
    "faulty": FAULTY,
}


def exposition(begin: float, cluster: str) -> str:
    """All examples, ``begin`` being when they began."""
    now = time.time()
    lines = []
    for node, given in NODES.items():
        for one, value in given.items():
            known = known_labels(one.metric)
            labels = {name: text for name, text in NODE_AND_GPU.items() if name in known}
            labels |= {"cluster": cluster, "instance": node, **dict(one.labels)}
            if one.metric.endswith("timestamp_seconds"):
                value = now if value else begin
            elif is_counter(one.metric):
                value *= now - begin
            lines.append(f"{with_labels(one.metric, labels)} {value}")
    return "\n".join([*dict.fromkeys(lines), ""])


@contextmanager
def served(cluster: str) -> Iterator[int]:
    """The examples for Prometheus; the port."""
    begin = time.time()

    with exporter(lambda _: exposition(begin, cluster).encode()) as port:
        yield port
