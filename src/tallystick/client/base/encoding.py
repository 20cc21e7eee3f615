"""What goes to a broker, as msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from tallystick.core.errors import InvalidRequest

_encode = msgspec.msgpack.Encoder().encode
_REFUSED = (TypeError, ValueError, OverflowError, msgspec.MsgspecError)


def encode(request: Any) -> bytes:
    """InvalidRequest, which names the field, for what msgpack cannot hold, such as a number beyond 64 bits."""
    try:
        return _encode(request)
    except _REFUSED as failure:
        field = _field_at_fault(request).lstrip(".")
        raise InvalidRequest(f"{field}: {failure}", field=field) from failure


def _field_at_fault(thing: Any) -> str:
    for name, part in _parts_of(thing):
        try:
            _encode(part)
        except _REFUSED:
            return name + _field_at_fault(part)
    return ""


def _parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Struct):
        yield from ((f".{name}", getattr(thing, name)) for name in thing.__struct_fields__)
    elif isinstance(thing, dict):
        yield from ((f"[{name!r}]", part) for name, part in thing.items())
    elif isinstance(thing, list):
        yield from ((f"[{place}]", part) for place, part in enumerate(thing))
