"""The threshold table."""
