"""What is broken on the node, since when, and until there is evidence that it was repaired."""
