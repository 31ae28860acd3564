"""What the daemon serves over HTTP; the only package that imports FastAPI."""
