"""Reconciliation: producers' databases, the broker and consumers' databases, compared as full sets.

settings    what to compare
summary     what came of it: the kinds of findings, and what each says to a human
brokers     what a broker is asked by the driver: topics, places of groups, how long it remembers
databases   what a database is asked: its tables as queries, its clock, how far back its rows reach
traces      each side as rows of one shape: what a transaction left behind there
snapshots   the order in which the sides are read, so that a running system gives no false alarm
comparison  one shuffle by gid; from there on everything known of a transaction is in one place
rules       from what is known to what is wrong
job         all of that one after the other, and how far back each side can be compared
"""

from tallystick.spark.jobs.reconcile.job import run_reconcile
from tallystick.spark.jobs.reconcile.settings import Consumer, ReconcileSettings
from tallystick.spark.jobs.reconcile.summary import Example, ReconcileSummary

__all__ = ["Consumer", "Example", "ReconcileSettings", "ReconcileSummary", "run_reconcile"]
