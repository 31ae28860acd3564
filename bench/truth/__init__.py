"""The ledger and the verdicts against real workloads whose every kernel is traced."""
