"""Creating the tables from the documented `.sql` file of the engine."""

from __future__ import annotations

from functools import cache

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import TransactionOpen
from tallystick.barrier.operations.common import own_transaction
from tallystick.barrier.operations.identity import give_identity, identity_row
from tallystick.barrier.statement import Control, Statement, Steps, operation, own_operation

# Another process may be creating them at this moment, and nothing is gained by giving up early.
_WAIT = 60.0


@cache
def table_definitions(engine: str) -> tuple[str, ...]:
    """The statements of `sql/<engine>.sql`, without their comments."""
    from importlib.resources import files  # late: few processes create tables, and every client would pay for it

    text = files("tallystick.barrier").joinpath("sql", f"{engine}.sql").read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(part.strip() for part in code.split(";") if part.strip())


@own_operation
def create_all(sql: Dialect) -> Steps[None]:
    """Create every table that is missing; those that exist are left as they are. The barrier gets its identity."""
    end = Control.ROLLBACK if sql.create_commits else Control.COMMIT
    yield from own_transaction(sql, sql.begin_creating(_WAIT), _create(sql), end)
    yield from give_identity(sql)


@operation
def create_here(sql: Dialect) -> Steps[None]:
    """The same in the transaction that is open, which the caller commits; refused where a CREATE TABLE would end it."""
    if sql.create_commits:
        raise TransactionOpen(
            f"create_tables: MySQL and MariaDB commit at each CREATE TABLE, so it cannot be part of a transaction (got "
            f"a connection with an open one). Use a connection without one, or run the statements of tallystick/"
            f"barrier/sql/{sql.name}.sql in the migration: `for statement in table_definitions({sql.name!r}): "
            "op.execute(statement)`."
        )
    for step in sql.lock_creating():  # noqa: UP028 - a tuple cannot take the results
        yield step
    yield from _create(sql)
    yield from identity_row(sql)


def _create(sql: Dialect) -> Steps[None]:
    for definition in table_definitions(sql.name):
        yield Statement(definition)
