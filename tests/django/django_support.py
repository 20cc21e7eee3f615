"""What the tests of Django share: its databases, and what is to be seen in the shop and at its broker."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from eventually import eventually
from servers import Server
from tallystick.django.test import memory_broker
from tallystick.testing import MemoryBroker

Place = dict[str, Any]
"""What Django's DATABASES says of a database."""

QUICK = {"check_after": "200ms", "check_interval": "200ms"}
_numbers = itertools.count()

raises = pytest.raises
"""Around a block of several lines, which is what is to raise."""

# A transaction that reads first and writes then may find that another has written meanwhile, and is refused at once.
SQLITE_OPTIONS = {"timeout": 10, "transaction_mode": "IMMEDIATE"}


def new_place(where: Path | Server, **options: Any) -> Place:
    """A new database: in a file, or of a server."""
    if isinstance(where, Path):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(where), "OPTIONS": {**SQLITE_OPTIONS, **options}}
    engine = {"postgresql": "postgresql", "mysql": "mysql"}[where.engine]
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": where.new_database(),
        "USER": where.user,
        "PASSWORD": where.password,
        "HOST": where.host,
        "PORT": str(where.port),
        "OPTIONS": options,
    }


@contextlib.contextmanager
def in_databases(places: Mapping[str, Place]) -> Iterator[None]:
    """Django's connections lead there meanwhile."""
    before = connections.settings
    _forget_connections()
    connections.settings = connections.configure_settings({alias: {**place} for alias, place in places.items()})
    try:
        yield
    finally:
        _forget_connections()
        connections.settings = before


def _forget_connections() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
        if getattr(connection, "pool", None):
            connection.close_pool()
        del connections[connection.alias]


class Shop:
    """The shop as it is now, and its broker."""

    def __init__(self, broker: MemoryBroker, places: Mapping[str, Place]) -> None:
        self.broker, self.places = broker, places

    def new_name(self, kind: str = "topic") -> str:
        return f"{kind}-{next(_numbers)}"

    def has(self, note: str, using: str = "default") -> bool:
        """What another connection sees: what is committed."""
        copy = connections[using].copy()
        copy.settings_dict["OPTIONS"].pop("pool", None)
        try:
            with copy.cursor() as cursor:
                cursor.execute("select count(*) from storefront_order where note = %s", [note])
                return bool(cursor.fetchone()[0])
        finally:
            copy.close()

    def outcome(self, gid: str) -> str:
        """Once the broker knows it, told by the block or by a check-back."""
        return eventually(lambda: self.broker.outcome(gid))

    def sent(self, topic: str) -> list[str]:
        return [message.text for message in self.broker.messages(topic)]


@contextlib.contextmanager
def new_shop(places: Mapping[str, Place], **options: Any) -> Iterator[Shop]:
    with in_databases(places), memory_broker(**{**QUICK, **options}) as broker:
        for alias in places:
            call_command("migrate", database=alias, verbosity=0, run_syncdb=True)
        yield Shop(broker, places)


def environment_of(places: Mapping[str, Place], tallystick: dict[str, Any]) -> dict[str, str]:
    """For a process of its own."""
    return {
        "DJANGO_SETTINGS_MODULE": "storefront.settings",
        "STOREFRONT_DATABASES": json.dumps(places),
        "STOREFRONT_TALLYSTICK": json.dumps(tallystick),
    }
