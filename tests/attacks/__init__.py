"""Attacks on the daemon by tenants, peers and dying hardware, each of which it outlives."""
