"""The database engines that hold barrier, inbox and outbox tables."""
