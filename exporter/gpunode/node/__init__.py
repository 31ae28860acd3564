"""The only access to the machine, and what implements it."""
