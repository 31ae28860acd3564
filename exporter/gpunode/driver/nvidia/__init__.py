"""NVIDIA: the driver through NVML, its GPM counters, and DCGM where a GPU has none."""
