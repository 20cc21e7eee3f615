"""One broker of a cluster, as those see it who ask it: it answers for its own stores, and hands on what is others'."""
