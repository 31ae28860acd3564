"""The only code that has privilege: it opens what the daemon may not, and parses nothing."""
