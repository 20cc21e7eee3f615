"""The client that services use to send and receive messages."""
