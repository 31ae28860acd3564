"""Drivers of GPUs: what is asked of one, and a folder for each vendor that answers."""
