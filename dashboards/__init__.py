"""Grafana dashboards: one file each in ``boards``, from which ``generate`` writes the JSON."""
