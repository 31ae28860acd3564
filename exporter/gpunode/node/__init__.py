"""The one door to the machine, and what stands behind it."""
