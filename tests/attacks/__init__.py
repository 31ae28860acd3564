"""Attacks by tenants, each of which once succeeded."""
