"""Inference engines: what they say, and what tenants may say in their place."""
