"""The API's own description, made from the routes and the structs they use."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from tallystick.api.http.route import Route
from tallystick.core.wire import PROBLEM, Problem

_STATUSES = {200: "done", 201: "made", 204: "done", 409: "not all of it was done", 503: "not now"}


@cache
def describe(routes: tuple[Route, ...]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = {kind for route in routes for kind in _kinds(route)} | {Problem}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(plain_path(route.path), {})[route.method.lower()] = _operation(route, by_kind)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Tallystick", "version": version("tallystick"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components},
    }
    described: dict[str, Any] = _ecma(document)
    return described


def _kinds(route: Route) -> list[Any]:
    found = (*route.takes.values(), *route.gives.values(), *route.also.values())
    return [kind for kind in found if kind is not None]


def plain_path(path: str) -> str:
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def parameters_of(route: Route) -> dict[str, dict[str, Any]]:
    """The schemas of the parameters after the question mark."""
    if route.query is None:
        return {}
    known: dict[str, dict[str, Any]] = msgspec.json.schema(route.query)["$defs"][route.query.__name__]["properties"]
    return {name: _present(schema) for name, schema in known.items()}


def _present(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter may be left out; that it would be null then is nothing that can be sent."""
    (kind,) = (one for one in schema.get("anyOf", [schema]) if one != {"type": "null"})
    return {name: value for name, value in {**schema, **kind}.items() if name != "anyOf" and value is not None}


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    def content(by_media: dict[str, Any]) -> dict[str, Any]:
        return {media: {} if kind is None else {"schema": schemas[kind]} for media, kind in by_media.items()}

    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if form else "string"}}
        for name, form in re.findall(r"\{(\w+)(:int)?\}", route.path)
    ]
    for name, schema in parameters_of(route).items():
        text, required = schema.pop("description"), name in _required(route.query)
        parameters.append({"name": name, "in": "query", "required": required, "description": text, "schema": schema})
    answers: dict[str, Any] = {str(route.status): {"description": _STATUSES[route.status]}}
    if route.gives:
        answers[str(route.status)]["content"] = content(route.gives)
    for status, kind in route.also.items():
        answers[str(status)] = {
            "description": _STATUSES[status],
            "content": {**content(dict.fromkeys(route.gives, kind)), **content({PROBLEM: Problem})},
        }
    answers["default"] = {"description": "a problem", "content": content({PROBLEM: Problem})}
    described: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z]+', '_', route.path)}",
        "parameters": parameters,
        "responses": answers,
    }
    if route.takes:
        described["requestBody"] = {"required": _needs_body(route), "content": content(route.takes)}
    return described


def _needs_body(route: Route) -> bool:
    """Where every field may be left out, so may the body."""
    return any(_required(kind) for kind in route.takes.values())


def _required(kind: type[msgspec.Struct] | None) -> set[str]:
    return set() if kind is None else {one.encode_name for one in msgspec.structs.fields(kind) if one.required}


def _ecma(node: Any) -> Any:
    r"""Patterns as JSON Schema has them: what Python writes as \Z is a plain $ there."""
    if isinstance(node, dict):
        return {
            name: value.replace(r"\Z", "$") if name == "pattern" and isinstance(value, str) else _ecma(value)
            for name, value in node.items()
        }
    return [_ecma(one) for one in node] if isinstance(node, list) else node


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tallystick API</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
details{border:1px solid #ddd;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code{font:14px ui-monospace,monospace}.m{display:inline-block;width:4.5rem;font-weight:700}
.GET{color:#0a6}.POST{color:#06c}.PUT{color:#a60}.DELETE{color:#c33}pre{background:#f6f6f6;padding:.6rem;overflow:auto}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}</style>
<h1>Tallystick API</h1><p>JSON for people, msgpack for the client library. Errors are
<code>application/problem+json</code>. The machine-readable form is <a href="/openapi.json">openapi.json</a>.</p>"""


@cache
def docs_page(routes: tuple[Route, ...]) -> str:
    """One page without scripts or anything from elsewhere: it works on a machine without a network."""
    parts = [_PAGE]
    for route in routes:
        path = html.escape(plain_path(route.path))
        parts.append(
            f'<details><summary><code><span class="m {route.method}">{route.method}</span>{path}</code> '
            f"&mdash; {html.escape(route.summary)}</summary>{_details(route)}</details>"
        )
    return "".join(parts) + "</html>"


def _details(route: Route) -> str:
    rows = "".join(
        f"<tr><td><code>{name}</code><td>{html.escape(schema['description'])}"
        for name, schema in parameters_of(route).items()
    )
    shown = f"<table>{rows}</table>" if rows else ""
    for title, by_media in (("Takes", route.takes), (f"Gives {route.status}", route.gives)):
        for kind in dict.fromkeys(by_media.values()):
            media = ", ".join(name for name, one in by_media.items() if one is kind)
            if kind is None:
                shown += f"<p>{title}: {html.escape(media)}</p>"
            else:
                shown += f"<p>{title} <code>{kind.__name__}</code>: {media}</p><pre>{html.escape(_fields(kind))}</pre>"
    return shown


def _fields(kind: Any) -> str:
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    lines = [str(schema.get("description", "")).partition("\n")[0]]
    required = set(schema.get("required", ()))
    for name, known in schema.get("properties", {}).items():
        form = known.get("type") or known.get("const") or known.get("$ref", "").rpartition("/")[2] or "one of several"
        lines.append(f"  {name}: {form}{'' if name in required else '  (optional)'}")
    return "\n".join(lines)
