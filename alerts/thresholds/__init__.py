"""The threshold table, a file a group; ``table.py`` gathers them."""
