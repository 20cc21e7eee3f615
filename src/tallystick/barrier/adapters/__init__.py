"""Recognises a database connection and makes it the same as every other.

A driver's module is imported only once a connection of its kind has been seen: nobody needs a driver that the
service does not use.
"""
