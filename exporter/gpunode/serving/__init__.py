"""What inference engines say of their requests: where each listens, and what its figures mean."""
