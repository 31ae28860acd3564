"""What is kept of an incident, and how it is shown; beside it, recordings of some."""
