"""Who is asking: the signature of a broker, verified by the services that it calls."""
