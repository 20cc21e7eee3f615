"""What belongs to one event loop of one process: its brokers, its threads, and what the client was told."""
