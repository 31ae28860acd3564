"""Real Prometheus and Alertmanager, and what they are given to look at."""
