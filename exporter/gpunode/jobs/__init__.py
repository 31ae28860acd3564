"""What runs on the GPUs."""
