"""What stands behind an alert: its clauses, its rules and its series, with their present values."""
