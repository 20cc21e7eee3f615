"""Tables made from the HTTP API and from the library's public names."""

from __future__ import annotations

import inspect as python_inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from doc_tables import default_of, table, type_name
from msgspec import inspect

import tallystick
from tallystick.api.http.table import ENTRIES
from tallystick.core import wire


def routes() -> str:
    rows = []
    for entry in ENTRIES:
        query = ", ".join(f"`{name}` ({text})" for name, text in entry.query.items())
        rows.append([f"`{entry.method} {_plain(entry.path)}`", entry.summary, query, _link(entry.takes), _link(entry.gives)])
    return table(["route", "what it does", "query", "takes", "gives"], rows)


def _plain(path: str) -> str:
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _link(kind: Any) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})" if kind is not None else ""


def bodies() -> str:
    parts = []
    for kind in sorted(_structs(), key=lambda kind: kind.__name__):
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        tag = f'As an operation of a batch: `"op": "{info.tag}"`.\n\n' if isinstance(info.tag, str) else ""
        said = _own_doc(kind)
        rows = [[f"`{field.encode_name}`", type_name(field.type), default_of(field)] for field in info.fields]
        parts.append(f"### {kind.__name__}\n\n{said}{tag}{table(['field', 'type', 'default'], rows)}")
    return "\n".join(parts)


def _own_doc(kind: type) -> str:
    text = kind.__dict__.get("__doc__")
    return f"{' '.join(text.split())}\n\n" if text else ""


def _structs() -> set[type]:
    """Every struct that a request or an answer may hold."""
    found: set[type] = set()
    for entry in ENTRIES:
        for kind in (entry.takes, entry.gives):
            if kind is not None:
                _gather(inspect.type_info(kind), found)
    _gather(inspect.type_info(wire.Problem), found)
    return found


def _gather(kind: inspect.Type, found: set[type]) -> None:
    if isinstance(kind, inspect.StructType):
        if kind.cls in found:
            return
        found.add(kind.cls)
        for field in kind.fields:
            _gather(field.type, found)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            _gather(one, found)
    elif isinstance(kind, inspect.ListType):
        _gather(kind.item_type, found)
    elif isinstance(kind, inspect.DictType):
        _gather(kind.value_type, found)
    elif isinstance(kind, inspect.Metadata):
        _gather(kind.type, found)


# --- the library -------------------------------------------------------------------------------------------------


def client() -> str:
    return _class(tallystick.Client)


def async_client() -> str:
    return _class(tallystick.AsyncClient)


def others() -> str:
    """Everything else that `import tallystick` offers."""
    parts = []
    for name in sorted(set(tallystick.__all__) - {"Client", "AsyncClient"}):
        value = getattr(tallystick, name)
        if isinstance(value, type) and issubclass(value, Exception):
            continue  # they have a page of their own
        parts.append(_class(value, level=3) if isinstance(value, type) else f"### {name}\n\n{_function(name, value)}")
    return "\n".join(parts)


def _class(kind: type, level: int = 2) -> str:
    title = "#" * level
    parts = [f"{title} {kind.__name__}\n\n{_signature(kind.__name__, kind)}\n\n{_prose(kind.__doc__)}"]
    if issubclass(kind, msgspec.Struct):
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        parts.append(table(["field", "type"], [[f"`{one.name}`", type_name(one.type)] for one in info.fields]))
    for name, member in _members(kind):
        if isinstance(member, property):
            parts.append(f"{title}# {kind.__name__}.{name}\n\nA property. {_prose(member.__doc__)}")
        else:
            parts.append(f"{title}# {kind.__name__}.{name}\n\n{_function(name, member)}")
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("tallystick"):
            continue
        for name, member in vars(base).items():
            public = not name.startswith("_") and name not in seen
            if public and (python_inspect.isfunction(member) or isinstance(member, property)):
                seen.add(name)
                yield name, member


def _function(name: str, member: Any) -> str:
    awaited = "await " if python_inspect.iscoroutinefunction(member) else ""
    return f"{_signature(awaited + name, member)}\n\n{_prose(member.__doc__)}"


def _signature(name: str, member: Any) -> str:
    try:
        found = python_inspect.signature(member)
    except ValueError:
        return ""
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    result = "" if isinstance(member, type) or found.return_annotation is found.empty else f" -> {found.return_annotation}"
    shown = str(found.replace(parameters=parameters, return_annotation=python_inspect.Signature.empty))
    text = name + shown.replace("'", "") + result.replace("'", "")
    if len(text) > 100:
        text = _wrapped(text)
    return f"```text\n{text}\n```"


def _wrapped(text: str) -> str:
    """One parameter a line: split at the commas that no bracket encloses."""
    opening, closing = text.index("("), text.rindex(")")
    parts, depth, part = [], 0, ""
    for character in text[opening + 1 : closing]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    parts.append(part.strip())
    return text[: opening + 1] + "\n" + "".join(f"    {one},\n" for one in parts if one) + text[closing:]


def _prose(text: str | None) -> str:
    """A docstring as paragraphs."""
    return python_inspect.cleandoc(text or "") + "\n" if text else ""

