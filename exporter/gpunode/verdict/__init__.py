"""The bottleneck of each GPU: the ledger, combined with the node's readings of the same seconds."""
