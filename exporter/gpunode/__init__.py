"""gpunode: every second of every GPU accounted for."""

__version__ = "0.1.0"
