"""What a user of PyPI's dtmcli writes on the sending side, one function for each way to use it.

Run as a process of its own with one argument, JSON: `do` names the function, the rest are its arguments. The last line
of its output is what became of it: the result, or the name and text of the exception that reached the caller.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
from dtmcli import utils
from dtmcli.barrier import AutoCursor
from dtmcli.msg import Msg
from dtmcli.saga import Saga
from dtmcli.tcc import tcc_global_transaction

MARK = "RESULT "


class Bank:
    """The sender's side of a transfer: user 1's money goes to user 2 (branch `in` of the service)."""

    def __init__(self, dtm: str, service: str, database: dict[str, Any]) -> None:
        self.dtm, self.service, self.database = dtm, service, database

    @property
    def check_back(self) -> str:
        return f"{self.service}/query_prepared"

    def msg(self, gid: str, amount: int = 30, paths: tuple[str, ...] = ("/in",), **options: Any) -> Msg:
        made = Msg(self.dtm, gid)
        for path in paths:
            made.add({"user": 2, "amount": amount}, self.service + path)
        for name, value in options.items():
            setattr(made.trans_base, name, value)
        return made

    def cursor(self) -> AutoCursor:
        return AutoCursor(pymysql.connect(**self.database).cursor())


def pay(cursor: Any, amount: int) -> None:
    """Take the money, if it is there."""
    taken = utils.sqlexec(
        cursor, f"update account set balance = balance - {amount} where user_id = 1 and balance >= {amount}"
    )
    if not taken:
        raise utils.DTMFailureError("not enough money")


# --- one message -----------------------------------------------------------------------------------------------------


def gen_gids(bank: Bank, count: int) -> list[str]:
    return [utils.gen_gid(bank.dtm) for _ in range(count)]


def submit(bank: Bank, gid: str, wait: bool = False, times: int = 1, **options: Any) -> None:
    made = bank.msg(gid, **options)
    if wait:
        made.set_wait_result()
    for _ in range(times):
        made.submit()


def prepare(bank: Bank, gid: str, times: int = 1, check: bool = True, **options: Any) -> None:
    made = bank.msg(gid, **options)
    for _ in range(times):
        made.prepare(bank.check_back if check else None)


def prepare_and_submit(bank: Bank, gid: str, **options: Any) -> None:
    made = bank.msg(gid, **options)
    made.prepare(bank.check_back)
    made.submit()


# --- a local transaction and a message -------------------------------------------------------------------------------


def transfer_db(bank: Bank, gid: str, amount: int = 30, **options: Any) -> None:
    """do_and_submit_db: the barrier, the change and its commit in one call."""
    with bank.cursor() as cursor:
        bank.msg(gid, amount, **options).do_and_submit_db(bank.check_back, cursor, lambda inside: pay(inside, amount))


def transfer(bank: Bank, gid: str, then: str = "", amount: int = 30, **options: Any) -> None:
    """do_and_submit: the caller uses the barrier; `then` tells what goes wrong, and when."""

    def local(barrier: Any) -> None:
        with bank.cursor() as cursor:
            if then == "late":
                wait_for_the_check(bank, gid)
            if then == "die before":
                die()
            barrier.call(cursor, lambda inside: business(inside))
            if then == "die after":
                die()
            if then == "raise after":
                raise ValueError("the answer of the database was lost")

    def business(cursor: Any) -> None:
        pay(cursor, amount)
        if then == "refuse":
            raise utils.DTMFailureError("refused by the business")
        if then == "raise":
            raise ValueError("a mistake in the business")
        if then == "die inside":
            die()

    bank.msg(gid, amount, **options).do_and_submit(bank.check_back, local)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_check(bank: Bank, gid: str) -> None:
    """Be so slow that the check-back comes before the local transaction."""
    with bank.cursor() as cursor:
        cursor.connection.autocommit(True)
        while not cursor.execute(f"select 1 from dtm_barrier.barrier where gid = '{gid}'"):
            time.sleep(0.05)


def transfers(bank: Bank, gids: list[str], amount: int = 30, **options: Any) -> dict[str, str]:
    """All at the same time; how each of them ended."""
    ended: dict[str, str] = {}

    def one(gid: str) -> None:
        try:
            transfer_db(bank, gid, amount, **options)
            ended[gid] = "ok"
        except Exception as error:
            ended[gid] = type(error).__name__

    threads = [threading.Thread(target=one, args=(gid,)) for gid in gids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def cursor_is_closed(bank: Bank) -> list[bool]:
    with bank.cursor() as cursor:
        connection = cursor.connection
        cursor.execute("select 1")
        before = bool(connection.open)
    return [before, bool(connection.open)]


# --- what is not a message -------------------------------------------------------------------------------------------


def saga(bank: Bank, gid: str) -> None:
    made = Saga(bank.dtm, gid)
    made.add({"user": 2, "amount": 30}, f"{bank.service}/in", f"{bank.service}/out")
    made.submit()


def tcc(bank: Bank, gid: str) -> str:
    body, service = {"user": 2, "amount": 30}, bank.service
    call = lambda made: made.call_branch(body, f"{service}/in", f"{service}/in", f"{service}/out")  # noqa: E731
    return str(tcc_global_transaction(bank.dtm, gid, call))


WAYS: dict[str, Callable[..., Any]] = {
    way.__name__: way
    for way in (
        gen_gids,
        submit,
        prepare,
        prepare_and_submit,
        transfer,
        transfer_db,
        transfers,
        cursor_is_closed,
        saga,
        tcc,
    )
}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    bank = Bank(asked.pop("dtm"), asked.pop("service"), asked.pop("database"))
    way = WAYS[asked.pop("do")]
    try:
        told = {"result": way(bank, **asked)}
    except Exception as error:
        told = {"raised": type(error).__name__, "text": str(error)}
    print(f"\n{MARK}{json.dumps(told)}")
