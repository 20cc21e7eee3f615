"""Who may do what, from the table of routes and the roles."""

from __future__ import annotations

from doc_tables import table

from tallystick.api.access.table import DTM_GRPC, DTM_HTTP, NATIVE, PEERS, Needs
from tallystick.core.access import PERMISSIONS, ROLES

_WHOM = {"known": "whoever is known", "open": "everybody", "peer": "other brokers of the cluster"}


def roles() -> str:
    shown = [[f"`{role}`", ", ".join(f"`{one}`" for one in PERMISSIONS if one in has)] for role, has in ROLES.items()]
    return table(["role", "permissions"], shown)


def access() -> str:
    parts = [("Native HTTP API", NATIVE), ("dtm's HTTP API", DTM_HTTP), ("gRPC", DTM_GRPC)]
    return "\n\n".join(f"### {title}\n\n{_rows(rows)}" for title, rows in (*parts, ("Between brokers", PEERS)))


def _rows(rows: dict[str, Needs]) -> str:
    shown = [[f"`{route}`", _who(needs), needs.touches or ""] for route, needs in rows.items()]
    return table(["route", "for whom", "object in its path"], shown)


def _who(needs: Needs) -> str:
    if needs.whom != "some":
        return _WHOM[needs.whom]
    said = " or ".join(f"`{one}`" for one in needs.permissions)
    return f"{said}; no browser" if needs.changes else said
