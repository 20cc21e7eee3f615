"""What goes to a broker, as msgpack; and where in a thing the part is that cannot be encoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from tallystick.core.errors import InvalidRequest

_encode = msgspec.msgpack.Encoder().encode

REFUSED = (TypeError, ValueError, OverflowError, msgspec.MsgspecError)
"""What an encoder raises for a thing that it cannot hold."""


def encode(request: Any) -> bytes:
    """InvalidRequest, which names the field, for what msgpack cannot hold, such as a number beyond 64 bits."""
    try:
        return _encode(request)
    except REFUSED as failure:
        field = place_at_fault(request, _encode).lstrip(".")
        raise InvalidRequest(f"{field}: {failure}", field=field) from failure


def place_at_fault(thing: Any, encode_one: Callable[[Any], bytes]) -> str:
    """The way to the innermost part that cannot be encoded, as in `.lines[2].price`; "" if it is the thing itself."""
    for name, part in parts_of(thing):
        try:
            encode_one(part)
        except REFUSED:
            return name + place_at_fault(part, encode_one)
    return ""


def parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing is made of, each with the way to it."""
    if isinstance(thing, dict):
        yield from ((f"[{name!r}]", part) for name, part in thing.items())
    elif isinstance(thing, list | tuple):
        yield from ((f"[{place}]", part) for place, part in enumerate(thing))
    else:
        yield from ((f".{name}", getattr(thing, name)) for name in _fields_of(thing))


def _fields_of(thing: Any) -> list[str]:
    if isinstance(thing, Struct):
        return list(thing.__struct_fields__)
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing)]
    return [attribute.name for attribute in getattr(thing, "__attrs_attrs__", ())]
