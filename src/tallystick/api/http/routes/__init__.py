"""The routes of the native API, grouped by what they are about."""
