"""The node around the GPUs, one file per thing read."""
