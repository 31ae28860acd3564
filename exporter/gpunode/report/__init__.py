"""The capacity report: what a fleet's GPUs were held for, what was lost, to what, and its price."""
