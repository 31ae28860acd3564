"""What stands for dcgm_structs: the base of its errors."""


class DCGMError(Exception):
    """An error of DCGM."""
