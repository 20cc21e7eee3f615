"""Stores in a database that several brokers share."""
