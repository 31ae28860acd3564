"""What the daemon serves over HTTP; the only place that knows FastAPI."""
