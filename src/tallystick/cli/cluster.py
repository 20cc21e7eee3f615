"""`tallystick cluster`: who is there, and who works on which store."""

from __future__ import annotations

from typing import Any

import typer

from tallystick.cli.failures import FAILED
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table, span
from tallystick.cli.store_troubles import StoreTroubles, store_troubles
from tallystick.core.errors import NotFound
from tallystick.link import Link


def add(app: typer.Typer) -> None:
    app.command("cluster", help="The brokers of a cluster, and which of them owns each store.")(cluster)


def cluster(url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        view = _view(broker)
        troubles = StoreTroubles({}, {}) if view.get("engine_away") else store_troubles(broker, view)
    for store in view["stores"]:
        store["trouble"] = troubles.stores.get(store["id"], store.get("trouble", ""))
    if as_json:
        print_json(view)
    elif view["brokers"]:
        _show(view)
    else:
        note(f"{broker.url} is a broker of its own, with store {view['stores'][0]['id']}")
    if view.get("engine_away"):
        note(f"the shared engine does not answer this broker: what it knows is {span(view['age_ms'] / 1000)} old")
        raise typer.Exit(FAILED)
    if troubles.stores or troubles.owners:
        for store, reason in troubles.stores.items():
            note(f"store {store} takes no new messages: {reason}")
        for owner, reason in troubles.owners.items():
            note(f"broker {owner} does not answer {broker.url}: {reason}")
        raise typer.Exit(FAILED)


def _show(view: dict[str, Any]) -> None:
    stores = view["stores"]
    print_table(
        ["broker", "address", "gRPC", "stores#", "state", "last beat"],
        [
            [one["id"], one["url"], one["grpc_url"], _owned(one["id"], stores), _state(one), _past(one, "silent_ms")]
            for one in view["brokers"]
        ],
        nothing="no brokers",
    )
    print_table(
        ["store", "number#", "epoch#", "owner", "since", "without owner"],
        [
            [
                one["id"],
                one["number"],
                one["epoch"],
                _owner(one),
                _past(one, "owned_ms"),
                _seconds(one.get("vacant_ms")),
            ]
            for one in stores
        ],
        nothing="no stores",
    )


def _view(broker: Link) -> Any:
    try:
        return broker.get("cluster")
    except NotFound as error:
        raise NotFound("the broker is older than clusters are; it is a broker of its own") from error


def _owned(broker: str, stores: list[dict[str, Any]]) -> int:
    return sum(one["owner"] == broker for one in stores)


def _owner(store: dict[str, Any]) -> str:
    """A store whose url is missing has nobody who answers for it."""
    if store["url"]:
        return str(store["owner"])
    return f"nobody (last {store['owner']})" if store["owner"] else "nobody"


def _past(one: dict[str, Any], name: str) -> str:
    """What an older broker does not tell is left out."""
    return "" if one.get(name) is None else f"{span(one[name] / 1000)} ago"


def _seconds(milliseconds: int | None) -> str:
    """A takeover takes seconds: tenths of them matter."""
    if milliseconds is None:
        return ""
    return f"{milliseconds / 1000:.1f}s" if milliseconds < 100_000 else span(milliseconds / 1000)


def _state(broker: dict[str, Any]) -> str:
    if not broker["alive"]:
        return "silent"
    return "leaving" if broker["leaving"] else "alive"
