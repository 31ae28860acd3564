"""Serving on real GPUs: what the daemon says of an engine in eight situations."""
