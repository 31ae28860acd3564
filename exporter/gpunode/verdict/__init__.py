"""What holds each GPU up: the ledger, joined with what the node saw in the same minute."""
