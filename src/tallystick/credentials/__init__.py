"""What a client sends to brokers and what it trusts: a token, a client certificate, the file of a CA."""
