"""Transactions, messages and timing rules; no input or output."""
