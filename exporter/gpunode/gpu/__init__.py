"""What a GPU did, read from the driver."""

GPU = ("gpu", "uuid")
"""Labels that say which GPU: the driver's index, and the identity that stays."""
