"""What every protocol stands on: sockets, raw ASGI, errors, a gRPC server."""
