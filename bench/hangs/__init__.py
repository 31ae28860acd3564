"""Jobs on real GPUs that hang, each in another way, and how soon and how well that is told."""
