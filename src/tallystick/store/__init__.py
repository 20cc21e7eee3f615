"""Stores: where a broker keeps what it acknowledged. One protocol, one module per engine."""
