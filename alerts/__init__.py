"""What derives from the rules for Prometheus, which are YAML."""
