"""Tests of what benches say and publish."""
