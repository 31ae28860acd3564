"""The metrics that no panel shows and no rule looks at, each with the reason.

What a verdict rests on needs none: the verdict is shown, and its evidence is on the node page and
in the API.
"""

from __future__ import annotations

from collections.abc import Mapping

UNSHOWN: Mapping[str, tuple[str, ...]] = {
    "A panel or a rule has the same from another metric: what is counted rather than sampled, has "
    "a time rather than a count, or is of the whole job": (
        "gpunode_gpu_clock_event_active",
        "gpunode_gpu_fabric_ready",
        "gpunode_gpu_nvlink_bit_error_ratio",
        "gpunode_gpu_operational_event_timestamp_seconds",
        "gpunode_gpu_operational_events_total",
        "gpunode_gpu_xid_errors_total",
        "gpunode_job_busy_threads",
        "gpunode_job_compilers",
        "gpunode_job_cpu_quota_throttled_seconds_total",
        "gpunode_job_pressure_stalled_seconds_total",
        "gpunode_kernel_log_last_event_timestamp_seconds",
        "gpunode_kernel_log_nvlink_xid_errors_total",
        "gpunode_kernel_log_xid_errors_total",
        "gpunode_nccl_measured_bytes_total",
        "gpunode_nccl_measured_collectives_total",
        "gpunode_torch_memory_allocated_bytes",
        "gpunode_training_nonfinite_losses_total",
        "gpunode_training_stalled",
        "gpunode_training_step_seconds",
    ),
    "How the machine is made or set up, which seldom changes: for comparing nodes": (
        "gpunode_cpu_threads_per_core",
        "gpunode_gpu_ledger_calibrated",
        "gpunode_gpu_memory_clock_max_hertz",
        "gpunode_gpu_persistence_mode",
        "gpunode_imex_channels",
        "gpunode_imex_daemon_running",
        "gpunode_imex_domain_nodes",
        "gpunode_infiniband_info",
        "gpunode_kernel_log_info",
        "gpunode_lustre_default_stripes",
        "gpunode_network_speed_bytes_per_second",
        "gpunode_pcie_nearest_nic_info",
    ),
    "Both sides of a comparison that `gpunode_pcie_link_degraded` makes": (
        "gpunode_gpu_pcie_link_generation_max",
        "gpunode_gpu_pcie_link_width_max_lanes",
        "gpunode_pcie_link_speed_max_transfers_per_second",
        "gpunode_pcie_link_speed_transfers_per_second",
        "gpunode_pcie_link_width_lanes",
        "gpunode_pcie_link_width_max_lanes",
    ),
    "Of few machines: modules of GPU and CPU, GPUs that smooth their power or that processes "
    "share": (
        "gpunode_gpu_c2c_links",
        "gpunode_gpu_module_power_limit_watts",
        "gpunode_gpu_module_power_watts",
        "gpunode_gpu_power_smoothing_life_ratio",
        "gpunode_gpu_process_utilization_ratio",
    ),
    "For a site's own sums and joins, such as accounting": (
        "gpunode_gpu_driver_energy_joules_total",
        "gpunode_helper_cpu_seconds_total",
        "gpunode_incident_info",
        "gpunode_incidents_total",
        "gpunode_job_processes",
        "gpunode_job_version_info",
        "gpunode_kubelet_gpu_pods",
        "gpunode_nccl_bench_timestamp_seconds",
        "gpunode_nccl_collectives_total",
        "gpunode_nccl_topology_channels",
        "gpunode_serving_inputs_total",
        "gpunode_slurm_jobs",
        "gpunode_training_flops_total",
        "gpunode_training_samples_total",
    ),
    "What a node judges its faults by, which Health shows, or what holds GPUs up": (
        "gpunode_disk_controller_live",
        "gpunode_filesystem_readonly",
        "gpunode_gpu_bottleneck",
        "gpunode_gpu_fabric_healthy",
        "gpunode_gpu_short_gaps_seconds_total",
        "gpunode_job_open_files_ratio",
        "gpunode_kernel_log_last_nvlink_xid_timestamp_seconds",
        "gpunode_kernel_log_last_xid_timestamp_seconds",
        "gpunode_lustre_rpc_timeouts_total",
        "gpunode_lustre_rpcs_in_flight",
        "gpunode_lustre_targets",
        "gpunode_nccl_communicator_info",
        "gpunode_network_up",
        "gpunode_nfs_requests_in_flight",
        "gpunode_nfs_retransmissions_total",
        "gpunode_nfs_timeouts_total",
        "gpunode_node_boot_timestamp_seconds",
        "gpunode_node_repaired_timestamp_seconds",
        "gpunode_pcie_device_info",
        "gpunode_serving_tokenless_seconds",
        "gpunode_training_last_step_timestamp_seconds",
    ),
    "Of daemons that keep incidents in a folder; their log says why": (
        "gpunode_incident_write_failures_total",
    ),
    "How well gpunode itself reads: `gpunode doctor` tells of it in words": (
        "gpunode_nccl_ras_unanswered",
        "gpunode_rest_cpu_seconds_total",
        "gpunode_serving_unanswered",
        "gpunode_source_cpu_seconds_total",
        "gpunode_source_dropped_series_total",
        "gpunode_source_last_success_timestamp_seconds",
        "gpunode_source_read_seconds_total",
        "gpunode_stack_looks_total",
        "gpunode_verdict_failures_total",
    ),
}
"""By reason, in the order of the alphabet."""
