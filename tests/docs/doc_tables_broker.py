"""Tables made from the broker: settings, metrics, errors, limits; and from the tables of the barrier package."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any, Literal, get_args, get_origin

import msgspec
from doc_tables import first_sentence, table, type_name
from msgspec import inspect

from tallystick.api.serving.crowd import Crowd
from tallystick.barrier import create_tables
from tallystick.barrier.operations.tables import table_definitions
from tallystick.broker.checkback.urls import _WORDS
from tallystick.broker.config import TABLES, Config, is_duration
from tallystick.broker.metrics import Metrics, StoreCollector
from tallystick.cli.flags import HELP, duration
from tallystick.core import errors
from tallystick.core.limits import MIB, Limits
from tallystick.store.memory import open_memory
from tallystick.store.protocol import StoreSettings


def configuration() -> str:
    known = {field.name: field for field in inspect.type_info(Config).fields}
    rows = []
    for field in msgspec.structs.fields(Config):
        kind = _kind(field, known[field.name])
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        rows.append([f"`{field.name}`", kind, shown_default(kind, default), HELP[field.name]])
    return table(["setting", "type", "default", "meaning"], rows)


def _kind(field: msgspec.structs.FieldInfo, known: inspect.Field) -> str:
    if field.name in TABLES:
        return "list of tables"
    if is_duration(field.name):
        return "duration"
    if get_origin(field.type) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(field.type))
    return type_name(known.type)


def shown_default(kind: str, value: Any) -> str:
    if kind == "duration":
        return f"`{duration(value)}`"
    if value in ("", {}, []):
        return "none"
    if isinstance(value, list):
        return ", ".join(f"`{one}`" for one in value)
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, int) and value >= MIB and value % MIB == 0:
        return f"`{value}` ({value // MIB} MiB)"
    return f"`{value}`"


def metrics() -> str:
    held = Metrics()
    store = open_memory(StoreSettings())
    with closing(store):
        collector = StoreCollector(store, held, store.failure)
        collector.counts = store.counts()
        families = [*held.registry.collect(), *collector.collect(), *Crowd().collect()]
    labels = {one._name: one._labelnames for one in vars(held).values() if hasattr(one, "_labelnames")}
    rows = []
    for family in sorted(families, key=lambda family: family.name):
        names = labels.get(family.name, getattr(family, "_labelnames", ()))
        ending = "_total" if family.type == "counter" else ""
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append([f"`{family.name}{ending}`", family.type, shown, family.documentation])
    return table(["metric", "type", "labels", "meaning"], rows)


# Raised where no request is being answered: at a broker's start, or by the library on its own account.
NOT_ANSWERED = (
    errors.Unproven,
    errors.AlreadyCommitted,
    errors.ArchiveUnwritable,
    errors.BrokerUnavailable,
    errors.BrokerUnreachable,
    errors.BrokerUntrusted,
    errors.ConfigError,
    errors.DamagedArchive,
    errors.DataDirectoryError,
    errors.DataLoss,
    errors.Incomplete,
    errors.OutcomeUnknown,
    errors.TransactionFailed,
)


def broker_errors() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    rows = [
        [
            f"`{kind.code}`",
            kind.status,
            "yes" if kind.retryable else "no",
            f"`{kind.__name__}`",
            first_sentence(kind.__doc__),
        ]
        for kind in sorted(kinds, key=lambda kind: (kind.status, kind.code))
        if kind not in NOT_ANSWERED
    ]
    return table(["code", "status", "may succeed later", "Python class", "meaning"], rows)


def check_answers() -> str:
    rows = [[status, f'`{{"{_field(word)}": "{word}"}}`', f"`{answer}`"] for (status, word), answer in _WORDS.items()]
    rows.append([425, "anything", "`unknown`"])
    return table(["status", "body", "means"], rows)


def _field(word: str) -> str:
    return "dtm_result" if word.isupper() else "outcome"


def limits() -> str:
    settings = {
        "message_bytes": "max_message_bytes",
        "request_bytes": "max_request_bytes",
        "transaction_messages": "max_transaction_messages",
        "topics": "max_topics",
        "groups": "max_groups",
        "queues_per_topic": "max_queues_per_topic",
    }
    rows = [
        [f"`{name}`", f"{value:,}", f"`{settings[name]}`" if name in settings else "fixed"]
        for name, value in msgspec.structs.asdict(Limits()).items()
    ]
    return table(["limit (name in `/v1/info`)", "default", "setting"], rows)


def tables() -> str:
    """Each table with its columns, from a database in which they were made; and the key, from the same."""
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(connection)
        found = [
            row[0]
            for row in connection.execute(
                "select name from sqlite_master where type = 'table' and name like 'tallystick%' order by rowid"
            )
        ]
        parts = []
        for name in found:
            columns = [row[1] for row in connection.execute(f"pragma table_info({name})")]
            shown = ", ".join(f"`{column}`" for column in columns)
            parts.append([f"`{name}`", shown, f"`{_key(name)}`"])
    return table(["table", "columns", "unique by"], parts)


def _key(name: str) -> str:
    (text,) = [one for one in table_definitions("sqlite") if one.startswith(f"create table if not exists {name} (")]
    found = re.search(r"unique \(([^)]*)\)", text) or re.search(r"primary key \(([^)]*)\)", text)
    if found is None:
        found = re.search(r"(\w+) varchar\(\d+\) not null primary key", text)
    assert found is not None, name
    return found[1]
