"""States of MySQL's drivers that do not tell all: what is missing is asked of the server.

Nothing is guessed. BEGIN commits what is open, so in autocommit mode it must be certain that nothing is.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tallystick.barrier.errors import TransactionLost

IN_TRANSACTION, AUTOCOMMIT = 1, 2  # bits of MySQL's server status
_NO_SUCH_VARIABLE, _NO_SUCH_SAVEPOINT, _TRANSACTION_IN_PROGRESS = 1193, 1305, 1568


class MysqlclientState:
    """mysqlclient: it tells whether it is in autocommit mode, and nothing of a transaction."""

    chains: ClassVar[bool] = True

    def open(self, raw: Any) -> bool:
        return _savepoints_stay(raw) if raw.get_autocommit() else _is_begun(raw)

    def doubt(self, raw: Any) -> str | None:
        return None

    def begin(self, raw: Any) -> str | None:
        return "begin" if raw.get_autocommit() and not _savepoints_stay(raw) else None

    def lost(self, raw: Any) -> TransactionLost | None:
        return None  # the mark that the block has left in its transaction tells


class ConnectorState:
    """mysql.connector: it knows of a transaction what the last answer said, and of autocommit what it was told itself.
    (Of what a statement has set it knows nothing.)"""

    chains: ClassVar[bool] = True

    def open(self, raw: Any) -> bool:
        return bool(raw.in_transaction)

    def doubt(self, raw: Any) -> str | None:
        return None

    def begin(self, raw: Any) -> str | None:
        status = _status(raw)
        return "begin" if status & AUTOCOMMIT and not status & IN_TRANSACTION else None

    def lost(self, raw: Any) -> TransactionLost | None:
        return None  # as above: after an error the last answer is an old one


def _status(raw: Any) -> int:
    """The server's status as of now; the two kinds of connections have two names for it."""
    told = raw.cmd_query("do 0")
    return int(told["status_flag"] if "status_flag" in told else told["server_status"])


def _savepoints_stay(raw: Any) -> bool:
    """In autocommit mode: a savepoint outside of a transaction is gone when it is made."""
    raw.query("savepoint tallystick_probe")
    try:
        raw.query("release savepoint tallystick_probe")
    except Exception as error:
        return _unless(_NO_SUCH_SAVEPOINT, error)
    return True


def _is_begun(raw: Any) -> bool:
    """Without autocommit, where every statement begins what is not begun: MariaDB has a variable for it. MySQL refuses
    to change the next transaction's isolation level, here to what it is, while there is a transaction."""
    try:
        raw.query("select @@in_transaction")
        return bool(int(raw.store_result().fetch_row()[0][0]))
    except Exception as error:
        _unless(_NO_SUCH_VARIABLE, error)
    try:
        raw.query("set @@transaction_isolation = @@session.transaction_isolation")
    except Exception as error:
        return not _unless(_TRANSACTION_IN_PROGRESS, error)
    return False


def _unless(number: int, error: Exception) -> bool:
    """False for this error; any other one is raised."""
    if error.args[:1] != (number,):
        raise error
    return False
