"""Answers to check-backs."""
