"""NVIDIA: the driver through NVML and its GPM counters, and DCGM for GPUs without GPM."""
