"""What a client shows to brokers, and whom it believes: a token, a client certificate, the file of a CA.

One piece of code for the client library, the command line and Spark. A token is known to whoever sends it and to
nobody else: it is in no repr, no error, no local variable of a frame that an error passes through, and in no pickle.
What travels to Spark's executors is where a token is found, and never the token.
"""
