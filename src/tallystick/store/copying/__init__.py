"""A whole store, carried from one place to another while nobody works on it."""
