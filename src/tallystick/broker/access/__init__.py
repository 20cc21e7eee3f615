"""Who is asking: tokens, JWTs, certificates, addresses, each a way from evidence to an identity."""
