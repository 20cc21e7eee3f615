"""The job: cuts what is pending into pieces, gives each to a task, and adds up what came of them.

No row of it goes through Spark: what a task reads from the broker it decides itself, from the databases, and tells the
broker. A shuffle would only cost time, for the pieces lie in order of time, as gids mostly do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.wire import Split
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.jobs.checkback.piece import PieceSummary, PieceWork
from tallystick.spark.jobs.checkback.producers import KnownDatabase, check_apart, look_at
from tallystick.spark.jobs.checkback.settings import CheckbackSettings, CheckbackSummary, Decided, Foreign
from tallystick.spark.permissions import permissions_at
from tallystick.spark.tasks import Report, SparkWorkers, parts_reported, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOREIGN_SHOWN = 20
_PIECES_PER_CORE = 8  # so that progress shows, and none is late for long


def run_checkback(spark: SparkSession, settings: CheckbackSettings, report: Report = quiet) -> CheckbackSummary:
    """Decide what is pending and can be decided from the given databases; safe to repeat, and to run twice at once."""
    began = time.monotonic()
    settings.check()
    check_command_lines(settings.credentials)
    databases = known_databases(settings)
    with BrokersLink(settings.url, patience=settings.retry, credentials=settings.credentials) as link:
        permissions = permissions_at(link)
        work = PieceWork(settings, databases, int(link.get("info")["now_ms"]))
        found = link.get("tables", "transactions", "splits", n=_pieces(spark, work), state=settings.state)
    total = PieceSummary()
    with parts_reported(spark, report, f"deciding from {', '.join(known.shown for known in databases)}"):
        for piece in SparkWorkers(spark).each(work, msgspec.convert(found["splits"], list[Split])):
            total.add(piece)
    summary = _summary(total, databases)
    summary.dry_run = settings.dry_run
    if not permissions.sees_transactions_of(settings.groups):
        summary.hidden = (
            f"{permissions.name!r} may read only the transactions of groups "
            f"{', '.join(permissions.groups_for('read')) or 'none'}"
        )
    summary.seconds = round(time.monotonic() - began, 3)
    return summary


def known_databases(settings: CheckbackSettings) -> tuple[KnownDatabase, ...]:
    """The given databases, each asked once who it is; those that could be taken for others are refused."""
    databases = tuple(look_at(given, settings.table) for given in settings.databases)
    check_apart(databases, settings.groups)
    return databases


def _pieces(spark: SparkSession, work: PieceWork) -> int:
    """Small ones; but never more at a time than a database is to bear."""
    if any(known.database.address.engine == "sqlite" for known in work.databases):
        return 1  # it has one writer
    cores, connections = spark.sparkContext.defaultParallelism, work.settings.connections
    return cores * _PIECES_PER_CORE if cores <= connections else connections


def _summary(total: PieceSummary, databases: tuple[KnownDatabase, ...]) -> CheckbackSummary:
    summary = CheckbackSummary(pending=total.pending, not_due=total.not_due, foreign=total.foreign.total())
    for (number, outcome), count in sorted(total.decided.items()):
        summary.add(Decided(databases[number].shown, outcome, count))
    for (source, via, target), count in total.foreign.most_common(_FOREIGN_SHOWN):
        summary.foreign_sources.append(Foreign(source, ":".join(filter(None, (via, target))), count))
    return summary
