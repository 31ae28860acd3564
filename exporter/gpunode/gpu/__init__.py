"""What each GPU does, read from its driver."""

GPU = ("gpu", "uuid")
"""Labels that identify a GPU: the driver's index, and the permanent UUID."""
