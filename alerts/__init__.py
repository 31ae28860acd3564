"""The rules for Prometheus, generated from ``alerts.thresholds.table``."""
