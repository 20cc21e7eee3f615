"""What `manage.py check` says of the settings, and `check --database default` of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from tallystick.barrier.adapters.django import supported
from tallystick.barrier.names import DIGEST_TABLE, INBOX_TABLE, OFFSET_TABLE, OUTBOX_TABLE, PREPARED_TABLE
from tallystick.django import conf


@register("tallystick")
def check_settings(**_: Any) -> list[CheckMessage]:
    try:
        found, aliases = conf.given(), conf.aliases()
        conf.refuse_wrong()
    except ImproperlyConfigured as wrong:
        return [Error(str(wrong), id="tallystick.E001")]
    problems: list[CheckMessage] = []
    if not found.get("GROUP"):
        problems.append(
            Warning(
                "TALLYSTICK has no GROUP: a block in check-back mode, the default, is refused.",
                hint='Name the service: TALLYSTICK = {"GROUP": "shop", ...}',
                id="tallystick.W001",
            )
        )
    if not aliases and not found.get("DECIDERS"):
        problems.append(
            Warning(
                "TALLYSTICK['DATABASES'] is empty: this process answers check-backs only of its own blocks, and "
                "re-drives no outbox after a crash.",
                hint="Name the databases with blocks or handlers, or leave DATABASES out for ['default'].",
                id="tallystick.W004",
            )
        )
    for alias in aliases:
        problems.extend(_check_database(alias))
    return problems


def _check_database(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if not supported(connection.vendor):
        return [
            Error(
                f"TALLYSTICK['DATABASES'] has {alias!r}, which is a database of the kind {connection.vendor}.",
                hint="Use PostgreSQL, MySQL, MariaDB or SQLite, or take the alias out.",
                id="tallystick.E002",
            )
        ]
    if connection.vendor == "sqlite" and str(connection.settings_dict["NAME"]) == ":memory:":
        return [
            Warning(
                f"The database {alias!r} is in memory: no second connection finds it to answer check-backs.",
                hint="Give it a file.",
                id="tallystick.W002",
            )
        ]
    return []


@register(Tags.database)
def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Only for the databases that the command was told to look into."""
    try:
        wanted = [alias for alias in conf.aliases() if alias in (databases or ())]
        needed = {conf.barrier_table().rpartition(".")[2]}
    except ImproperlyConfigured:
        return []  # told already
    needed |= {DIGEST_TABLE, INBOX_TABLE, OFFSET_TABLE, OUTBOX_TABLE, PREPARED_TABLE}
    problems: list[CheckMessage] = []
    for alias in wanted:
        connection = connections[alias]
        missing = needed - set(connection.introspection.table_names()) if supported(connection.vendor) else set()
        if missing:
            problems.append(
                Warning(  # not an error: `migrate` looks here first, and errors would keep it from making them
                    f"The database {alias!r} has no table {', '.join(sorted(missing))}.",
                    hint=f"manage.py migrate tallystick --database {alias}",
                    id="tallystick.W003",
                )
            )
    return problems
