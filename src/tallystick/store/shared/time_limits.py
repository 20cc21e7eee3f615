"""How long a process waits for a server of shared stores; `docs/architecture.md` explains how the limits work."""

CONNECT_SECONDS = 5.0  # for each host of an address, its set-up included
SUSPECT_SECONDS = 3.0  # without an answer, then the server is asked over a new connection what became of the statement
LOST_SECONDS = 8.0  # without an answer, then a statement is given up unless the server confirms that it works on it
OUTAGE_SECONDS = 9.5  # from the beginning of a read or a write to its last retry; less than the servers' lock time-outs
ANSWER_SECONDS = 60.0  # for a statement that the server works on, for example the deletion of some million rows
