"""The settings of each command, without what the command imports."""
