"""The ways out of the broker: the allow-list, and HTTP, TLS and gRPC to addresses that were checked against it.

Calls, check-backs and alerts stand on it; it knows none of them.
"""
