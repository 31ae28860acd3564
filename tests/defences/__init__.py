"""Each named defence has a test that fails without it.

``python -m tests.defences`` removes them one by one and lists those that no test misses; with
names, only these.
"""
