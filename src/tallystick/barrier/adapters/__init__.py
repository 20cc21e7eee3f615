"""One interface to the connections of every driver; `recognition` chooses the adapter."""
