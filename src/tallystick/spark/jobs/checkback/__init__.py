"""Check-back in bulk: pending transactions decided from the barrier tables of the producers' databases.

What has a barrier row has its outcome; for what has none the same rule is applied as by the online check: insert
`rolled back`, then read. The job holds nothing that matters: it may be killed anywhere, run again, and run twice at
once, beside producers and the online check.
"""

from tallystick.spark.jobs.checkback.job import known_databases, run_checkback
from tallystick.spark.jobs.checkback.producers import ProducerDatabase
from tallystick.spark.jobs.checkback.settings import CheckbackSettings, CheckbackSummary, Decided, Foreign

__all__ = [
    "CheckbackSettings",
    "CheckbackSummary",
    "Decided",
    "Foreign",
    "ProducerDatabase",
    "known_databases",
    "run_checkback",
]
