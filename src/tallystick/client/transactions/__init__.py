"""`with ts.transaction(conn)`: a local transaction and its messages, which happen together or not at all."""
