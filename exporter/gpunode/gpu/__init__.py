"""What a GPU did, read from the driver."""
