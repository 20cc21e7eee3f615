"""Values of messages and bodies of calls: from what a program has to bytes, and back to a type that it names.

JSON is msgspec's, with all the types that it knows. Models of pydantic are encoded and validated by pydantic, wherever
in a value they are; it is never imported for anybody else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from tallystick.client.base.encoding import REFUSED, parts_of, place_at_fault
from tallystick.core.errors import InvalidRequest, TallystickError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Decode = Callable[[bytes], Any]

_ERRORS_TOLD = 3


class UndecodableValue(TallystickError):
    """The value of a message is not of the type that was asked for; the text says where in it, and why."""

    code = "undecodable_value"


def encode_value(value: Any, field: str = "value") -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return value.encode() if isinstance(value, str) else _to_json(value)
    except RecursionError:
        raise InvalidRequest(f"{field}: it holds itself, or is nested too deeply for JSON", field=field) from None
    except REFUSED as failure:
        place = field + place_at_fault(value, _to_json)
        raise InvalidRequest(f"{place}: cannot be made JSON or UTF-8 ({failure}); give bytes", field=field) from failure


def _to_json(value: Any) -> bytes:
    text = _encode(value)
    if b"null" in text:  # which JSON also has for what it has no number for
        _refuse_endless(value)
    return text


def _refuse_endless(value: Any) -> None:
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"JSON has no number for {value}")
    elif hasattr(type(value), "__pydantic_serializer__"):
        _refuse_endless(value.model_dump())
    else:
        for _, part in parts_of(value):
            _refuse_endless(part)


def _encode_other(value: Any) -> Any:
    """What msgspec does not know. Names on the wire are the aliases, by which pydantic also validates."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    raise TypeError(f"there is no JSON for {type(value).__qualname__}")


_encode = msgspec.json.Encoder(enc_hook=_encode_other).encode


@lru_cache(maxsize=4096)
def decoder_of(kind: Any) -> Decode:
    """Decodes values to one type: bytes as they are, text (and enums and literals of it) from UTF-8, anything else
    from JSON.

    The decoder raises `ValueError`, whose text says where a value is wrong.
    """
    if kind is bytes:
        return bytes
    if kind is str:
        return lambda value: value.decode()
    if _is_text(kind):
        return _decoder_of_text(kind)
    if _is_pydantic(kind):
        return lambda value: _validated(kind, value)
    try:
        unknown = [found.__qualname__ for found in _customs(inspect.type_info(kind), set()) if not _is_pydantic(found)]
        decoder = msgspec.json.Decoder(kind, dec_hook=_decode_other)
    except (TypeError, NameError) as failure:  # a name that the class was written with is not there
        raise InvalidRequest(f"type: {name_of(kind)} cannot be decoded from JSON: {failure}", field="type") from failure
    if unknown:
        raise InvalidRequest(
            f"type: {name_of(kind)} cannot be decoded from JSON: nothing is known of {', '.join(unknown)}; "
            "use dataclasses, msgspec Structs or pydantic models",
            field="type",
        )
    return decoder.decode


def _is_text(kind: Any) -> bool:
    """Whether its values are text, and so are sent as that: enums whose members are strings, literals of strings."""
    if get_origin(kind) is Literal:
        return all(isinstance(one, str) for one in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, str) and issubclass(kind, enum.Enum)


def _decoder_of_text(kind: Any) -> Decode:
    from_json = msgspec.json.Decoder(kind).decode

    def decode(value: bytes) -> Any:
        # Others than this library may have sent it as JSON.
        return from_json(value) if value.startswith(b'"') else msgspec.convert(value.decode(), kind)

    return decode


def name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _customs(node: Any, seen: set[int]) -> Iterator[type]:
    """The classes in a type that msgspec leaves to others."""
    if isinstance(node, inspect.CustomType):
        yield node.cls
    elif isinstance(node, tuple | list):
        for one in node:
            yield from _customs(one, seen)
    elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
        seen.add(id(node))
        for name in node.__struct_fields__:
            yield from _customs(getattr(node, name), seen)


def _decode_other(kind: type, value: Any) -> Any:
    """A model inside of something else, as JSON once more: strict models take more from JSON than from Python."""
    return _validated(kind, msgspec.json.encode(value))


def _is_pydantic(kind: Any) -> bool:
    """A model, or a dataclass of pydantic's."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _validated(kind: type, value: bytes) -> Any:
    from pydantic import ValidationError  # whoever has a model has imported it

    try:
        return _adapter(kind).validate_json(value)
    except ValidationError as failure:
        raise ValueError(_told(failure)) from failure


@lru_cache(maxsize=4096)
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _told(failure: ValidationError) -> str:
    """In one line, and without the values: these may be secrets, and the line goes into logs and dead letters."""
    errors = failure.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{error['msg']} - at `{_place(error['loc'])}`" for error in errors[:_ERRORS_TOLD]]
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _place(steps: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
