"""Streaming queries run to their end, also on a machine that does much else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

TOO_SLOW = "Python worker failed to connect back"
INITIALIZING = ("Initializing StreamExecution", "Initializing sources")


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait for its end; an error of it is raised.

    The Python process of a source has ten seconds to come up. Where that was not enough the query has done nothing yet,
    and is started again.
    """
    from pyspark.errors import StreamingQueryException

    while True:
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise
        else:
            return query
        finally:
            query.stop()


def begin(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that goes on by itself: again, if its source did not come up in its ten seconds."""
    while True:
        query = start()
        while query.isActive and query.status["message"] in INITIALIZING:
            time.sleep(0.05)
        if query.isActive or TOO_SLOW not in str(query.exception()):
            return query
        query.stop()
