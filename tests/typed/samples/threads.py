"""A program with `Client`, as a user would write it, and what a type checker must make of each expression."""

import sqlite3
from typing import assert_type

import tallystick
from tallystick import (
    AlreadyCommitted,
    CallOptions,
    CheckBack,
    Client,
    Fetched,
    Message,
    OutcomeUnknown,
    Sent,
    Stats,
    Transaction,
    outgoing,
)
from tallystick.errors import InvalidRequest, StaleLease, TallystickError


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


client = Client(
    ["http://127.0.0.1:7440"], group="shop", database=open_shop, check=CheckBack(after=1.0), timeout=5.0, wait=True
)
assert_type(client, Client)
assert_type(client.stats, Stats)
assert_type(client.stats.handled, int)
assert_type(client.new_gid(), str)

with Client() as opened:
    assert_type(opened, Client)

with client.transaction(open_shop(), mode="outbox", gid="order-1", call_options=CallOptions(retry=1)) as tx:
    assert_type(tx, Transaction)
    assert_type(tx.gid, str)
    tx.send("orders", {"item": "tea"}, key="tea", delay=0.5)
    tx.call("http://127.0.0.1:8000/credit", {"amount": 5}, timeout=2)
    tx.commit(wait=True)

sent = client.send("orders", {"item": "tea"}, level=1)
assert_type(sent, Sent)
assert_type(sent.gid, str | None)
assert_type(sent.duplicate, bool)
assert_type(client.send_many([outgoing("orders", b"tea")], gid="one"), Sent)

fetched = client.fetch("orders", 0, 0, max=10)
assert_type(fetched, Fetched)
assert_type(fetched.messages, list[Message])
assert_type(fetched.next, int)

received = client.receive("orders", "packers", wait=5, ordered=True)
assert_type(received, list[Message])
assert_type(received[0].value, bytes)
assert_type(received[0].text, str)
assert_type(received[0].headers, dict[str, str] | None)
client.ack("packers", received)
client.nack("packers", received[0], delay=1)
client.renew("packers", received)
assert_type(client.topic("orders").ends, list[int])
assert_type(client.clean(open_shop(), older_than=86_400), dict[str, int])

try:
    client.ack("packers", received)
except StaleLease as stale:
    assert_type(stale, StaleLease)
    assert_type(stale.detail, str)
except (OutcomeUnknown, AlreadyCommitted, InvalidRequest) as refused:
    known: TallystickError = refused

client.send("orders", {}, level=3)  # wrong
client.send("orders")  # wrong
client.send("orders", {}, topics="a")  # wrong
client.fetch("orders", "0", 0)  # wrong
client.transaction(open_shop(), mode="inbox")  # wrong
client.transaction(open_shop(), prepare="soon")  # wrong
client.receive("orders", "packers", start="first")  # wrong
client.subscribe("orders", by="key")  # wrong
tallystick.Clients()  # wrong
