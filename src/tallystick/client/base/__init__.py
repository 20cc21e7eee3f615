"""What every room of the client stands on: messages and calls as users hand them in, settings, databases, threads."""
