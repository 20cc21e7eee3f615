"""dtm's gRPC service."""
