"""What hostile tenants and dying machines do to the daemon, and what it says then."""
