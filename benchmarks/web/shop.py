"""What the shops of all frameworks have in common: their tables, what they say of an order, and where they find things.

An order looks up a price and inserts a row. With messages, its block also sends what was ordered.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

CONNECTIONS = 32
"""How many requests come at a time, and to how many connections a shop's pool may grow: waiting for one is no part of
what is measured."""
DATABASE, BROKER, TOPIC = "SHOP_DATABASE", "SHOP_BROKER", "SHOP_TOPIC"
"""The environment variables of a shop."""
POOL = "SHOP_POOL"
"""To how many connections the pool may grow, where it is not `CONNECTIONS`."""
PRODUCTS = 100


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "product"

    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int]


class Order(Base):
    __tablename__ = "shop_order"

    id: Mapped[str] = mapped_column(primary_key=True)
    product: Mapped[int]
    total: Mapped[int]
    told: Mapped[bool]
    """Whether a message was sent with it."""

    def as_message(self) -> dict[str, Any]:
        return {"id": self.id, "product": self.product, "total": self.total}


def setting(name: str) -> str:
    return os.environ[name]


def pool_size() -> int:
    return int(os.environ.get(POOL, CONNECTIONS))
