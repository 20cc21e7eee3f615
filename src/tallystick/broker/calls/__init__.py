"""Calls: committed messages that the broker delivers itself, to URLs, over HTTP, JSON-RPC and gRPC."""
