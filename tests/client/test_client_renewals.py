"""Leases are kept while a message is handled, and let alone once it is settled."""

from __future__ import annotations

import logging
import time

import pytest

from brokers import running_broker
from eventually import eventually
from tallystick import Client, Message

# Notes the leases that are renewed, and those of them that had been settled. An ack is answered late.
_WATCHED = """
import asyncio, pathlib
from tallystick.broker.door import BrokerDoor
from tallystick.core.ops import Ack, Nack, Renew
settled = set()
carry_out = BrokerDoor.batch
async def batch(self, ops, *weight):
    renewed = {receipt for op in ops if isinstance(op, Renew) for receipt in op.receipts}
    results = await carry_out(self, ops, *weight)
    for name, these in (("renewed", renewed), ("late", renewed & settled)):
        with pathlib.Path(name).open("a") as notes:
            notes.writelines(f"{receipt}\\n" for receipt in these)
    mine = {receipt for op in ops if isinstance(op, (Ack, Nack)) for receipt in op.receipts}
    if mine:
        settled.update(mine)
        await asyncio.sleep(0.8)
    return results
BrokerDoor.batch = batch
"""

# Has no room for renewals before the first ack is done, so that they come again when their message is settled.
_BUSY = """
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import Busy
from tallystick.core.ops import Ack, OpResult, Renew
acked = []
carry_out = BrokerDoor.batch
async def batch(self, ops, *weight):
    if acked:
        return await carry_out(self, ops, *weight)
    others = [op for op in ops if not isinstance(op, Renew)]
    results = iter(await carry_out(self, others, *weight))
    acked.extend(op for op in ops if isinstance(op, Ack))
    return [OpResult(Busy.code) if isinstance(op, Renew) else next(results) for op in ops]
BrokerDoor.batch = batch
"""


@pytest.mark.parametrize("fails", [False, True], ids=["ack", "nack"])
def test_what_is_settled_is_not_renewed_any_more(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.client")
    handled: list[int] = []

    def handle(message: Message) -> None:
        handled.append(message.json())
        time.sleep(0.7)  # more than half of the lease, so that it is renewed
        if fails and message.attempt == 1:
            raise ValueError("once more")

    with running_broker(prelude=_WATCHED, redelivery_first="50ms") as broker, Client(broker.url, group="g") as ts:
        for number in range(4):
            ts.send("orders", number)
        ts.subscribe("orders", group="readers", invisible=1.0)(handle)
        ts.start()
        eventually(lambda: set(handled) == {0, 1, 2, 3} and len(handled) >= (8 if fails else 4))
        eventually(lambda: ts.offsets("readers", "orders").lag == 0)
        time.sleep(1.0)  # nothing comes after the last ack
        assert (broker.directory / "renewed").read_text()
        assert (broker.directory / "late").read_text() == ""
    assert not [record for record in caplog.records if "lease" in record.getMessage()]


def test_a_renewal_that_comes_late_says_nothing_and_revives_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.client")
    handled: list[int] = []

    def handle(message: Message) -> None:
        time.sleep(2.2)  # its lease wants renewing after two seconds
        handled.append(message.json())

    with running_broker(prelude=_BUSY) as broker, Client(broker.url, group="g") as ts:
        ts.send("orders", 1)
        ts.subscribe("orders", group="readers", invisible=4.0)(handle)
        ts.start()
        eventually(lambda: handled == [1])
        eventually(lambda: ts.offsets("readers", "orders").lag == 0)
        time.sleep(2.0)  # the renewal has come through by now
        assert handled == [1]
        assert ts.offsets("readers", "orders").lag == 0
    assert not [record for record in caplog.records if "lease" in record.getMessage()]
