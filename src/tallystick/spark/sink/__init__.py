"""The sink: rows of a DataFrame or a stream become messages, exactly once."""
