"""The rules for Prometheus, generated from ``gpunode.thresholds``."""
