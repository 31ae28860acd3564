"""What hostile tenants and dying drivers may try, and what the daemon makes of it."""
