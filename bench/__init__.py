"""What the daemon costs and how right it is, printed and kept in ``docs/performance``."""
