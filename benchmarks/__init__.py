"""The full benchmarks, with a real PostgreSQL server beside the broker."""
