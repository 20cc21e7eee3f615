"""What the shop does for a message; found by `manage.py tallystick_consume`."""

from __future__ import annotations

from storefront.models import Order
from tallystick import Message
from tallystick.client.transactions.transaction import TransactionBase
from tallystick.django import ts


@ts.subscribe("parcels")
def keep(message: Message) -> None:
    Order.objects.create(note=message.text)


@ts.subscribe("letters", group="letterbox")
def answer(message: Message, tx: TransactionBase) -> None:
    Order.objects.create(note=message.text)
    tx.send("answers", f"to {message.text}")


@ts.subscribe("ledger", group="bookkeeper", by="offset")
def book(message: Message, tx: TransactionBase) -> None:
    Order.objects.create(note=message.text)
    tx.send("booked", message.text)


@ts.subscribe("news", group="reader", by="offset", start="latest", tags=["new"])
def read(message: Message) -> None:
    Order.objects.create(note=message.text)
