"""Who holds the GPUs: the processes on each, what can be seen of them, and whose they are."""
