"""The chaos monkey: producers, brokers and consumers as processes, struck in rounds, and the sets of ids compared.

Each producer and each consumer has a database of its own. In each round some nodes of each kind are killed, paused or
cut off at once, by a schedule that its seed repeats. After each round, while the load goes on, and once more when all
has settled, what producers committed and what consumers have is compared.
"""
