"""Gives every parser what nobody meant it to read."""
