"""The API's own description, made from the table of routes and the structs they use."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from tallystick.api.http.table import ENTRIES, Entry
from tallystick.core.wire import JSON, PROBLEM, Problem


@cache
def describe() -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = {kind for entry in ENTRIES for kind in (entry.takes, entry.gives) if kind is not None} | {Problem}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for entry in ENTRIES:
        paths.setdefault(_plain(entry.path), {})[entry.method.lower()] = _operation(entry, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tallystick", "version": version("tallystick"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components},
    }


def _plain(path: str) -> str:
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _operation(entry: Entry, schemas: dict[Any, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", entry.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in entry.query.items()
    ]
    answer: dict[str, Any] = {"description": "done"}
    if entry.gives is not None:
        answer["content"] = {JSON: {"schema": schemas[entry.gives]}}
    described: dict[str, Any] = {
        "summary": entry.summary,
        "operationId": f"{entry.method.lower()}{re.sub(r'[^a-z]+', '_', entry.path)}",
        "parameters": parameters,
        "responses": {
            "200": answer,
            "default": {"description": "a problem", "content": {PROBLEM: {"schema": schemas[Problem]}}},
        },
    }
    if entry.takes is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[entry.takes]}}}
    return described


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tallystick API</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
details{border:1px solid #ddd;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code{font:14px ui-monospace,monospace}.m{display:inline-block;width:4.5rem;font-weight:700}
.GET{color:#0a6}.POST{color:#06c}.PUT{color:#a60}.DELETE{color:#c33}pre{background:#f6f6f6;padding:.6rem;overflow:auto}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}</style>
<h1>Tallystick API</h1><p>JSON for people, msgpack for the client library. Errors are
<code>application/problem+json</code>. The machine-readable form is <a href="/openapi.json">openapi.json</a>.</p>"""


@cache
def docs_page() -> str:
    """One page without scripts or anything from elsewhere: it works on a machine without a network."""
    parts = [_PAGE]
    for entry in ENTRIES:
        path = html.escape(_plain(entry.path))
        parts.append(
            f'<details><summary><code><span class="m {entry.method}">{entry.method}</span>{path}</code> '
            f"&mdash; {html.escape(entry.summary)}</summary>{_details(entry)}</details>"
        )
    return "".join(parts) + "</html>"


def _details(entry: Entry) -> str:
    rows = "".join(f"<tr><td><code>{name}</code><td>{html.escape(text)}" for name, text in entry.query.items())
    shown = f"<table>{rows}</table>" if rows else ""
    for title, kind in (("Takes", entry.takes), ("Gives", entry.gives)):
        if kind is not None:
            shown += f"<p>{title} <code>{kind.__name__}</code></p><pre>{html.escape(_fields(kind))}</pre>"
    return shown


def _fields(kind: Any) -> str:
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    lines = [str(schema.get("description", "")).partition("\n")[0]]
    required = set(schema.get("required", ()))
    for name, known in schema.get("properties", {}).items():
        form = known.get("type") or known.get("const") or known.get("$ref", "").rpartition("/")[2] or "one of several"
        lines.append(f"  {name}: {form}{'' if name in required else '  (optional)'}")
    return "\n".join(lines)
