"""Uses that cannot work are refused with the use that does."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tallystick import AsyncClient, Client
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
