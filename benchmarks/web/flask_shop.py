"""A shop on Flask and SQLAlchemy: `gunicorn --workers 2 --threads 16 benchmarks.web.flask_shop:app`."""

from __future__ import annotations

from typing import Any

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import tallystick
from benchmarks.web.shop import BROKER, DATABASE, TOPIC, Order, Product, pool_size, setting

topic = setting(TOPIC)
engine = create_engine(setting(DATABASE), pool_size=pool_size(), max_overflow=0)
ts = tallystick.Client(setting(BROKER), group="flask-shop")
app = Flask(__name__)


def place(session: Session, *, told: bool) -> Order:
    wanted = request.get_json()
    product = session.get_one(Product, wanted["product"])
    order = Order(id=wanted["id"], product=product.id, total=product.price * wanted["quantity"], told=told)
    session.add(order)
    session.flush()
    return order


@app.post("/without")
def without_messages() -> dict[str, Any]:
    with Session(engine, expire_on_commit=False) as session:
        order = place(session, told=False)
        session.commit()
    return order.as_message()


@app.post("/with")
def with_messages() -> dict[str, Any]:
    with Session(engine, expire_on_commit=False) as session, ts.transaction(session) as tx:
        order = place(session, told=True)
        tx.send(topic, order.as_message(), key=order.id)
    return order.as_message()
