"""The same over PostgreSQL: a producer with SQLAlchemy's ORM, a consumer with its Core.

    pip install '.[postgresql,sqlalchemy]'    # in a checkout
    tallystick serve &
    DATABASE_URL=postgresql://user:password@localhost/shop python examples/transfer_postgresql.py

It makes Tallystick's tables and two of its own (`example_order`, `example_parcel`) in that database.
"""

import os
import sys
import time

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tallystick
from tallystick.barrier import create_tables

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
DATABASE_URL = make_url(os.environ.get("DATABASE_URL", "postgresql://localhost/postgres"))
engine = create_engine(DATABASE_URL.set(drivername="postgresql+psycopg"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Parcel(Base):
    __tablename__ = "example_parcel"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(unique=True)


def place_order(ts: tallystick.Client, item: str) -> int:
    """The message carries the id that the database gave the order: it is prepared at the end of the block."""
    with Session(engine) as session:
        with ts.transaction(session) as tx:
            order = Order(item=item)
            session.add(order)
            session.flush()
            number = order.id
            tx.send("example.orders", {"order": number, "item": item}, key=str(number))
        return number


def packed(number: int) -> bool:
    with engine.connect() as conn:
        found = conn.execute(text("select count(*) from example_parcel where order_id = :number"), {"number": number})
        return found.scalar_one() == 1


def main() -> None:
    with engine.connect() as conn:
        create_tables(conn)
    Base.metadata.create_all(engine)
    with tallystick.Client(URL, group="example.shop") as ts:

        @ts.subscribe("example.orders", group="example.warehouse", exactly_once=engine.connect)
        def pack(message: tallystick.Message, conn: Connection) -> None:
            number = message.json()["order"]
            conn.execute(text("insert into example_parcel (order_id) values (:number)"), {"number": number})

        number = place_order(ts, "tally stick")
        ts.start()
        deadline = time.monotonic() + 10
        while not packed(number) and time.monotonic() < deadline:
            time.sleep(0.05)
    print(f"the order is {'packed' if packed(number) else 'not packed'}")
    engine.dispose()


if __name__ == "__main__":
    main()
