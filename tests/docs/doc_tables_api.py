"""Tables made from the HTTP API and from the library's public names."""

from __future__ import annotations

import ast
import inspect as python_inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

import msgspec
from doc_tables import default_of, first_sentence, table, type_name
from msgspec import inspect

import tallystick
from tallystick import barrier, fastapi, flask
from tallystick.api.http.openapi import parameters_of, plain_path
from tallystick.api.http.table import ROUTES
from tallystick.client import handlers
from tallystick.core import wire
from tallystick.testing import CrashAt, MemoryBroker


def routes() -> str:
    rows = []
    for route in ROUTES:
        query = ", ".join(f"`{name}` ({schema['description']})" for name, schema in parameters_of(route).items())
        place = f"`{route.method} {plain_path(route.path)}`"
        also = "".join(f"; {status}: {_links({'': kind})}" for status, kind in route.also.items())
        rows.append(
            [
                place,
                route.summary,
                query,
                _links(route.takes),
                f"{route.status}: {_links(route.gives)}{also}".rstrip(": "),
            ]
        )
    return table(["route", "what it does", "query", "takes", "gives"], rows)


def _links(by_media: dict[str, Any]) -> str:
    """The kinds of a body, each once; bytes by their media type."""
    found = {
        f"[{kind.__name__}](#{kind.__name__.lower()})" if kind else f"`{name}`": 0 for name, kind in by_media.items()
    }
    return ", ".join(found)


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
    for route in ROUTES:
        for kind in (*route.takes.values(), *route.gives.values(), *route.also.values()):
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
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        _gather(kind.item_type, found)
    elif isinstance(kind, inspect.DictType):
        _gather(kind.value_type, found)
    elif isinstance(kind, inspect.Metadata):
        _gather(kind.type, found)


# --- the library -------------------------------------------------------------------------------------------------


def client() -> str:
    return class_text(tallystick.Client)


def async_client() -> str:
    """The same names; which of them are awaited."""
    names = [name for name, _ in _members(tallystick.AsyncClient)]
    assert sorted(names) == sorted(name for name, _ in _members(tallystick.Client))
    awaited = [name for name in names if python_inspect.iscoroutinefunction(getattr(tallystick.AsyncClient, name))]
    rows = [
        ["awaited", ", ".join(f"`{name}`" for name in awaited)],
        ["not awaited", ", ".join(f"`{name}`" for name in names if name not in awaited)],
    ]
    return table(["", "methods"], rows)


def others() -> str:
    """Everything else that `import tallystick` offers."""
    parts = []
    here, there = (dict(_members(one)) for one in (tallystick.Transaction, tallystick.AsyncTransaction))
    assert here.keys() == there.keys()
    for name in sorted(set(tallystick.__all__) - {"Client", "AsyncClient", "AsyncTransaction"}):
        value = getattr(tallystick, name)
        if python_inspect.ismodule(value) or (isinstance(value, type) and issubclass(value, Exception)):
            continue  # errors have a page of their own
        parts.append(
            class_text(value, level=3) if isinstance(value, type) else f"### {name}\n\n{_function(name, value)}"
        )
    return "\n".join(parts)


def check_back_handlers() -> str:
    return "\n".join(_function(f"handlers.{one.__name__}", one) for one in (handlers.asgi, handlers.wsgi))


def extensions() -> str:
    """Those for web frameworks, each in a module of its own; what they have of a client is left out."""
    parts = []
    for kind in (fastapi.Tallystick, flask.Tallystick):
        name = f"{kind.__module__}.{kind.__name__}"
        parts += [f"### {name}\n", _signature(kind.__name__, kind) + "\n", _prose(kind.__doc__)]
        own = set(vars(kind))
        title = f"#### {name.removeprefix('tallystick.')}."
        parts += [_member(one, member, title) for one, member in _members(kind) if one in own]
    return "\n".join(parts)


def barrier_names() -> str:
    """The operations on the tables, for those who do without the client."""
    rows = []
    for name in sorted(barrier.__all__):
        value = getattr(barrier, name)
        if python_inspect.isfunction(value):
            rows.append([f"`{name}`", first_sentence(value.__doc__)])
    return table(["function", "what it does"], rows)


# What users never call: it is public between modules of the library only.
_INTERNAL = ("after_fork", "by_group", "claim", "on_the_wire", "prove")


def class_text(kind: type, level: int = 2) -> str:
    title = "#" * level
    made_by_users = kind in (tallystick.Client, tallystick.CheckBack, tallystick.Verifier, MemoryBroker, CrashAt)
    parts = [f"{title} {kind.__name__}\n"]
    if made_by_users:
        parts.append(_signature(kind.__name__, kind) + "\n")
    parts.append(_prose(kind.__dict__.get("__doc__")))
    if issubclass(kind, msgspec.Struct) and not made_by_users:
        parts.append(_fields(kind))
    for name, member in _members(kind):
        parts.append(_member(name, member, f"{title}# {kind.__name__}."))
    return "\n".join(part for part in parts if part)


def _member(name: str, member: Any, title: str) -> str:
    if isinstance(member, property):
        return f"{title}{name}\n\nA property. {_prose(member.__doc__)}".rstrip() + "\n"
    return f"{title}{name}\n\n{_function(name, member)}"


def _fields(kind: type[msgspec.Struct]) -> str:
    """The fields of a struct, with the text that follows each in the source, if there is some."""
    body = ast.parse(textwrap.dedent(python_inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in pairwise(body.body):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[ast.unparse(before.target)] = str(after.value.value)
    names = [name for name in kind.__struct_fields__ if not name.startswith("_")]
    rows = [[f"`{name}`", f"`{kind.__annotations__[name]}`", texts.get(name, "")] for name in names]
    return table(["field", "type", ""], rows) if texts else table(["field", "type"], [row[:2] for row in rows])


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("tallystick"):
            continue
        for name, member in vars(base).items():
            public = not name.startswith("_") and name not in (*seen, *_INTERNAL)
            if public and (python_inspect.isfunction(member) or isinstance(member, property)):
                seen.add(name)
                yield name, member


def _function(name: str, member: Any) -> str:
    awaited = "await " if python_inspect.iscoroutinefunction(member) else ""
    return f"{_signature(awaited + name, member)}\n\n{_prose(member.__doc__)}"


def _signature(name: str, member: Any) -> str:
    found = python_inspect.signature(member)
    function = member.__init__ if isinstance(member, type) else python_inspect.unwrap(member)
    known = getattr(function, "__globals__", {})
    shown: list[str] = []
    for one in found.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(_parameter(one, known))
    result = "" if isinstance(member, type) else f" -> {_annotation(found.return_annotation, known)}"
    text = f"{name}({', '.join(shown)}){result}"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){result}"
    return f"```text\n{text}\n```"


def _parameter(one: python_inspect.Parameter, known: dict[str, Any]) -> str:
    default = "" if one.default is one.empty else f" = {_value(one.default)}"
    stars = "**" if one.kind is one.VAR_KEYWORD else ""
    return f"{stars}{one.name}: {_annotation(one.annotation, known)}{default}"


def _annotation(annotation: Any, known: dict[str, Any]) -> str:
    """As it is written; a name for a set of words as those words."""
    named = known.get(annotation) if isinstance(annotation, str) else annotation
    if get_origin(named) is Literal:
        return " | ".join(_value(one) for one in get_args(named))
    return annotation if isinstance(annotation, str) else python_inspect.formatannotation(annotation)


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _prose(text: str | None) -> str:
    """A docstring as paragraphs."""
    return python_inspect.cleandoc(text or "") + "\n" if text else ""
