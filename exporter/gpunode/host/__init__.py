"""Metrics of the node around the GPUs; one file per subsystem."""
