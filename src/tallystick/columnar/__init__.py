"""Messages in columns: Arrow record batches as they are stored and as they travel."""
