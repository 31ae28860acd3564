"""NCCL: its debug log, its RAS service, and how fast its collectives run."""
