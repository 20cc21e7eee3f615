"""One barrier table, two libraries: what dtmcli has decided ours reads, and what ours has decided dtmcli reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from dtmcli_bank import Bank, ask

from tallystick.dtm import BranchBarrier, Duplicated, Failure

pytestmark = pytest.mark.mariadb

TABLE = "dtm_barrier.barrier"
NEVER = {"timeout_to_fail": 3_600}
SEND = "update account set balance = balance - 30 where user_id = 1"
TAKE = "update account set balance = balance + 30 where user_id = 2"


def new_gid() -> str:
    return f"shared-{uuid4().hex}"


@contextlib.contextmanager
def connected(bank: Bank) -> Iterator[Any]:
    with contextlib.closing(bank.server.connect(bank.database)) as connection:
        yield connection


def ours(gid: str, branch: str = "00", op: str = "msg") -> BranchBarrier:
    return BranchBarrier("msg", gid, branch, op, table=TABLE)


def run(sql: str) -> Any:
    return lambda connection: connection.cursor().execute(sql)


def asked_of_dtmcli(bank: Bank, path: str, gid: str, branch: str, op: str) -> int:
    """A request as a broker would make it, to the service with dtmcli's barrier."""
    query = urlencode({"gid": gid, "trans_type": "msg", "branch_id": branch, "op": op})
    body = None if path == "/query_prepared" else {"user": 2, "amount": 30}
    status, _ = ask(bank.port, "POST" if body else "GET", f"{path}?{query}", body)
    return status


def test_what_dtmcli_committed_we_read_as_committed(bank: Bank) -> None:
    gid = new_gid()
    assert bank.do("transfer", gid=gid, then="die after", **NEVER).raised == "killed"
    with connected(bank) as connection:
        ours(gid).query_prepared(connection)
        with pytest.raises(Duplicated):
            ours(gid).call(connection, run(SEND))
    assert bank.balances() == (-30, 0)


def test_what_dtmcli_never_committed_we_decide_and_dtmcli_must_accept_it(bank: Bank) -> None:
    gid = new_gid()
    with connected(bank) as connection, pytest.raises(Failure):
        ours(gid).query_prepared(connection)
    assert asked_of_dtmcli(bank, "/query_prepared", gid, "00", "msg") == 409
    told = bank.do("transfer_db", gid=gid, **NEVER)
    assert (told.raised, told.text) == ("Exception", "msg duplicate error")
    assert bank.balances() == (0, 0)


def test_what_we_committed_dtmcli_reads_as_committed(bank: Bank) -> None:
    gid = new_gid()
    with connected(bank) as connection:
        ours(gid).call(connection, run(SEND))
    assert asked_of_dtmcli(bank, "/query_prepared", gid, "00", "msg") == 200
    assert bank.balances() == (-30, 0)
    assert bank.barriers(gid) == {(gid, "00", "msg", "01", "msg")}


def test_what_dtmcli_decided_first_keeps_our_late_transaction_out(bank: Bank) -> None:
    gid = new_gid()
    assert asked_of_dtmcli(bank, "/query_prepared", gid, "00", "msg") == 409
    with connected(bank) as connection, pytest.raises(Duplicated):
        ours(gid).call(connection, run(SEND))
    assert bank.balances() == (0, 0)


@pytest.mark.parametrize("first", ["dtmcli", "ours"])
def test_a_branch_happens_once_whoever_handles_it_first(bank: Bank, first: str) -> None:
    gid = new_gid()

    def handle_ours() -> None:
        with connected(bank) as connection:
            ours(gid, "01", "action").call(connection, run(TAKE))

    def handle_dtmcli() -> None:
        assert asked_of_dtmcli(bank, "/in", gid, "01", "action") == 200

    both = [handle_dtmcli, handle_ours]
    for handle in both if first == "dtmcli" else reversed(both):
        handle()
    assert bank.balances() == (0, 30)
    assert bank.barriers(gid) == {(gid, "01", "action", "01", "action")}


def test_a_local_transaction_of_dtmcli_that_still_runs_is_waited_for(bank: Bank) -> None:
    """Ours must neither take it for rolled back nor for committed while dtmcli's holds the key."""
    gid = new_gid()
    insert = f"insert ignore into {TABLE}(trans_type, gid, branch_id, op, barrier_id, reason)"
    with connected(bank) as running, connected(bank) as connection:
        running.cursor().execute(f"{insert} values('msg','{gid}','00','msg','01','msg')")
        with pytest.raises(Exception, match="still running"):
            ours(gid).query_prepared(connection)
        running.commit()
        ours(gid).query_prepared(connection)
