"""Handlers, and the type that their messages are decoded to: a handler of another type must be an error."""

import sqlite3
from dataclasses import dataclass
from typing import assert_type

from msgspec import Struct
from pydantic import BaseModel

from tallystick import AsyncClient, Client, Message, TransactionBase, UndecodableValue


class Order(Struct):
    item: str


@dataclass
class Invoice:
    amount: int


class Parcel(BaseModel):
    weight: float


class HeavyParcel(Parcel):
    crane: str


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


client = Client(group="shop")
loop_client = AsyncClient(group="shop")

# Without a type


@client.subscribe("orders")
def plain(message: Message) -> None:
    assert_type(message.value, bytes)


@client.subscribe("orders", exactly_once=open_shop, by="offset")
def plain_with_connection(message: Message, conn: sqlite3.Connection) -> None:
    conn.execute("select 1")


@loop_client.subscribe("orders")
async def plain_on_the_loop(message: Message) -> None:
    assert_type(message.decode(Order), Order)


# With a type: all forms of a handler


@client.subscribe("orders", type=Order)
def note(message: Message[Order]) -> None:
    assert_type(message.data, Order)
    assert_type(message.data.item, str)
    assert_type(message.value, bytes)


@client.subscribe("invoices", type=Invoice, exactly_once=open_shop)
def bill(message: Message[Invoice], conn: sqlite3.Connection) -> None:
    conn.execute("insert into bill values (?)", (message.data.amount,))


@client.subscribe("parcels", type=Parcel, exactly_once=open_shop, batch=10)
def pack(message: Message[Parcel], conn: sqlite3.Connection, tx: TransactionBase) -> None:
    assert_type(message.data.weight, float)
    tx.send("packed", message.data)


@client.subscribe("orders", type=list[Order])
def many(message: Message[list[Order]]) -> None:
    assert_type(message.data[0].item, str)


@client.subscribe("parcels", type=HeavyParcel)
def of_a_wider_type(message: Message[Parcel]) -> None:
    assert_type(message.data, Parcel)


@client.subscribe("orders", type=Order | Invoice)  # the checker knows no more than that it is a type
def either(message: Message) -> None:
    assert_type(message.topic, str)


@loop_client.subscribe("orders", type=Order, exactly_once=open_shop)
async def on_the_loop(message: Message[Order], conn: sqlite3.Connection, tx: TransactionBase) -> None:
    assert_type(message.data, Order)


@loop_client.subscribe("orders", type=Order)
def on_a_thread(message: Message[Order]) -> None:
    assert_type(message.data, Order)


note(client.receive("orders", "shop")[0])
assert_type(bill(client.receive("orders", "shop")[0], open_shop()), None)

# Without a subscription

for received in client.receive("orders", "packers"):
    try:
        assert_type(received.decode(Order), Order)
        assert_type(received.decode(Parcel).weight, float)
        assert_type(received.decode(dict[str, int]), dict[str, int])
    except UndecodableValue as wrong:
        client.nack("packers", received, dead=True, reason=wrong.detail)

# What must not be


@client.subscribe("orders", type=Order)  # wrong
def of_another_type(message: Message[Invoice]) -> None: ...


@client.subscribe("orders", type=Order, exactly_once=open_shop)  # wrong
def of_another_type_with_connection(message: Message[Invoice], conn: sqlite3.Connection) -> None: ...


@loop_client.subscribe("orders", type=Order)  # wrong
async def of_another_type_on_the_loop(message: Message[Parcel]) -> None: ...


@client.subscribe("parcels", type=Parcel)  # wrong
def of_a_narrower_type(message: Message[HeavyParcel]) -> None: ...


@client.subscribe("orders", type=Order)  # wrong
def without_a_message() -> None: ...


@client.subscribe("orders", type=Order)  # wrong
def of_too_many(message: Message[Order], conn: sqlite3.Connection, tx: TransactionBase, more: int) -> None: ...


@client.subscribe("orders", type=Order, exactly_once=open_shop)  # wrong
def of_no_transaction(message: Message[Order], conn: sqlite3.Connection, tx: str) -> None: ...


@client.subscribe("orders", type=Order)
def uses_what_is_not_there(message: Message[Order]) -> None:
    print(message.data.amount)  # wrong
