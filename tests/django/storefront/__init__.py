"""A small shop in Django, which the tests run in their own process and as a service."""
