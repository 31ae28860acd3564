"""The fit of the ledger to programs that were recorded, and how right it is on others."""
