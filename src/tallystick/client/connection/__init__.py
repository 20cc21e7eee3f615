"""The way to the brokers: which one, in which request, and what a lost answer means."""
