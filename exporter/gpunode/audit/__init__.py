"""The tuning audit: whether the node is set up for training; one file per topic."""
