"""GPU drivers: their interface, and a folder for each vendor."""
