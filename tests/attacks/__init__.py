"""Attacks and faults that the daemon must survive, tried on the daemon itself where they can be."""
