"""What is to be done with a node, for programs that act on it: text to hand over, never an act."""
