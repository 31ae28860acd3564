"""What hostile tenants and dying drivers do to a daemon, and what it must survive."""
