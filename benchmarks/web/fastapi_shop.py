"""A shop on FastAPI and SQLAlchemy's asyncio: `uvicorn benchmarks.web.fastapi_shop:app`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import tallystick
from benchmarks.web.shop import BROKER, CONNECTIONS, DATABASE, TOPIC, Order, Product, setting

topic = setting(TOPIC)
engine = create_async_engine(setting(DATABASE), pool_size=CONNECTIONS)
sessions = async_sessionmaker(engine, expire_on_commit=False)
ts = tallystick.AsyncClient(setting(BROKER), group="fastapi-shop")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await ts.close()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


class Wanted(BaseModel):
    id: str
    product: int
    quantity: int


async def place(session: AsyncSession, wanted: Wanted, *, told: bool) -> Order:
    product = await session.get_one(Product, wanted.product)
    order = Order(id=wanted.id, product=product.id, total=product.price * wanted.quantity, told=told)
    session.add(order)
    await session.flush()
    return order


@app.post("/without")
async def without_messages(wanted: Wanted) -> dict[str, Any]:
    async with sessions() as session:
        order = await place(session, wanted, told=False)
        await session.commit()
    return order.as_message()


@app.post("/with")
async def with_messages(wanted: Wanted) -> dict[str, Any]:
    async with sessions() as session, ts.transaction(session) as tx:
        order = await place(session, wanted, told=True)
        tx.send(topic, order.as_message(), key=order.id)
    return order.as_message()
