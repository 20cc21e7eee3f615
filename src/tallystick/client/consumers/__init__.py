"""Subscriptions: messages brought to handlers, each with its effect once."""
