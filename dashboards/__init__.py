"""Grafana dashboards: one file each in ``boards``, from which ``generate`` writes the JSON."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "json"
"""Where they are as Grafana loads them, for which nothing need be installed."""
