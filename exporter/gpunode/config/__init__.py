"""The settings of the daemon, and what every setting is made of."""
