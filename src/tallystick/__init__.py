"""Tallystick: a local database transaction and its messages happen together or not at all."""
