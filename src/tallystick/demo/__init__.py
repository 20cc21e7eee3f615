"""The demo: transfers between two banks while their processes and the broker are killed, then the proof.

Bank A debits an account and sends the transfer in one transaction; bank B credits it exactly once. Each bank has a
SQLite database of its own. A monkey kills producers, consumers and the broker at random moments with SIGKILL.
At the end the sets of transfer ids in both databases and in the broker's log are compared.
"""
