"""Uses that cannot work are refused with the use that does."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import pickle
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tallystick import AsyncClient, Client, outgoing
from tallystick.core.errors import InvalidRequest
from tallystick.fastapi import Tallystick as ForFastApi

URL = "http://127.0.0.1:9"


async def test_async_with_names_the_class_for_coroutines() -> None:
    client: Any = Client(URL)
    with pytest.raises(
        TypeError, match=r"Client: .*\(got `async with`\)\. In coroutines, use AsyncClient: `async with"
    ):
        async with client:
            pass
    block: Any = client.transaction(sqlite3.connect(":memory:"))
    with pytest.raises(TypeError, match=r"Transaction: .*use the transaction of an AsyncClient"):
        async with block:
            pass
    block._block.adapter.close()


async def test_with_names_the_class_for_threads() -> None:
    client: Any = AsyncClient(URL)
    said = r"AsyncClient: .*\(got `with`\)\. Outside of coroutines, use Client: `with Client"
    with pytest.raises(TypeError, match=said), client:
        pass
    block: Any = client.transaction(sqlite3.connect(":memory:"))
    with pytest.raises(TypeError, match=r"AsyncTransaction: .*use the transaction of a Client"), block:
        pass
    block._block.adapter.close()
    await client.close()


def work(client: Client) -> None:
    raise AssertionError("no client comes to another process")


@pytest.mark.parametrize("make", [Client, AsyncClient, ForFastApi])
def test_a_client_for_another_process_is_refused_with_what_to_do(make: Callable[[str], Any]) -> None:
    client = make(URL)
    for give in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"it cannot be pickled or copied.*Make a \w+ in the child"):
            give(client)


def test_a_spawned_process_is_refused_before_it_starts() -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=(Client(URL),))
    with pytest.raises(TypeError, match="Make a Client in the child"):
        process.start()


NOT_ENTERED = r"transaction: the block was not entered \(got tx\.{}\(\)\)\. Write `with ts\.transaction\(conn\) as tx:`"
USES: dict[str, Callable[[Any], Any]] = {
    "send": lambda tx: tx.send("orders", 1),
    "call": lambda tx: tx.call("http://127.0.0.1:9/", 1),
    "commit": lambda tx: tx.commit(),
    "prepare": lambda tx: tx.prepare(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mode", ["check-back", "outbox"])
async def test_a_block_that_was_not_entered_is_refused_and_begins_nothing(use: str, mode: Any) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        options = {"mode": mode, **({"prepare": "early"} if use == "prepare" and mode == "check-back" else {})}
        with Client(URL, group="shop") as client, pytest.raises(InvalidRequest, match=NOT_ENTERED.format(use)):
            USES[use](client.transaction(connection, **options))
        async with AsyncClient(URL, group="shop") as ts:
            with pytest.raises(InvalidRequest, match=NOT_ENTERED.format(use)):
                await USES[use](ts.transaction(connection, **options))
        assert not connection.in_transaction


GIVEN: list[tuple[str, Callable[[Any], Any], str]] = [
    ("headers", lambda ts: ts.send("orders", 1, headers=[("a", "b")]), "headers: a dict is needed (got list)"),
    ("headers", lambda ts: ts.send("orders", 1, headers=[]), "headers: a dict is needed (got list)"),
    ("headers", lambda ts: ts.call("http://127.0.0.1:9/", headers="a"), "headers: a dict is needed (got str)"),
    ("messages", lambda ts: ts.send_many([{"topic": "orders"}]), "messages: each must be OutgoingMessage (got dict)"),
    ("messages", lambda ts: ts.send_many(["orders"]), "messages: each must be OutgoingMessage (got 'orders')"),
    ("messages", lambda ts: ts.send_many(outgoing("orders", 1)), "messages: a list is needed (got tallystick."),
    ("messages", lambda ts: ts.prepare("g", [{}]), "messages: each must be OutgoingMessage (got dict)"),
    ("messages", lambda ts: ts.prepare_part("g.p", None, gid="g"), "messages: a list is needed (got NoneType)"),
    ("calls", lambda ts: ts.send_calls(["http://127.0.0.1:9/"]), "calls: each must be OutgoingCall (got 'http"),
    ("calls", lambda ts: ts.prepare("g", [], calls=[{}]), "calls: each must be OutgoingCall (got dict)"),
    ("messages", lambda ts: ts.ack("g", "abc"), "messages: a list is needed (got 'abc')"),
    ("messages", lambda ts: ts.ack("g", ["abc"]), "messages: each must be Message (got 'abc')"),
    ("messages", lambda ts: ts.nack("g", None), "messages: a list is needed (got NoneType)"),
    ("messages", lambda ts: ts.renew("g", {"a": 1}), "messages: each must be Message (got 'a')"),
]


@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
async def test_an_argument_of_another_kind_is_refused_with_its_name(given: Any) -> None:
    field, use, said = given
    with Client(URL, group="shop") as client, pytest.raises(InvalidRequest) as caught:
        use(client)
    assert (caught.value.field, said in str(caught.value)) == (field, True), str(caught.value)
    async with AsyncClient(URL, group="shop") as ts:
        with pytest.raises(InvalidRequest) as caught:
            await use(ts)
    assert (caught.value.field, said in str(caught.value)) == (field, True), str(caught.value)
