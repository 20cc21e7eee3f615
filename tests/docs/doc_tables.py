"""Tables of Markdown, and types as a reader wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import inspect


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [" ".join(str(cell).split()).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


_PLAIN = {
    inspect.AnyType: "anything",
    inspect.BoolType: "bool",
    inspect.BytesType: "bytes (JSON: base64)",
    inspect.FloatType: "number",
    inspect.IntType: "int",
    inspect.NoneType: "null",
    inspect.RawType: "msgpack",
    inspect.StrType: "text",
}


def type_name(kind: inspect.Type) -> str:
    """A type in words: `text`, `int`, `list of int`, `park or rollback`, the name of a struct."""
    if isinstance(kind, inspect.Metadata):
        return type_name(kind.type)
    if isinstance(kind, inspect.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return f"list of {_grouped(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return f"map of {_grouped(kind.key_type)} to {_grouped(kind.value_type)}"
    if isinstance(kind, inspect.UnionType):
        return " or ".join(type_name(one) for one in kind.types)
    return _PLAIN[type(kind)] + _bounds(kind)


def _grouped(kind: inspect.Type) -> str:
    name = type_name(kind)
    return f"({name})" if " or " in name else name


def _bounds(kind: inspect.Type) -> str:
    least, most = getattr(kind, "ge", None), getattr(kind, "le", None)
    if isinstance(kind, inspect.StrType):
        least, most = kind.min_length, kind.max_length
        unit = " characters"
    else:
        unit = ""
    if least is None and most is None:
        return ""
    if least is None:
        return f" (at most {most:,}{unit})"
    if most is None:
        return f" (at least {least:,}{unit})"
    return f" ({least:,} to {most:,}{unit})"


def default_of(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default is field.default_factory is msgspec.NODEFAULT:
        return "absent"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct) or value in ([], {}, ()):
        return "empty"
    return f"`{msgspec.json.encode(value).decode()}`"
