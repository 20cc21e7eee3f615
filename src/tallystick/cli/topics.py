"""`tallystick topics`: list, show, create and delete topics."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tallystick.cli.confirm import Yes, confirm
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, number_of, print_json, print_table, when
from tallystick.cli.times import duration, parsed
from tallystick.core.errors import NotFound
from tallystick.core.names import check_name
from tallystick.link import Link

topics = typer.Typer(help="Topics: list (also without a word), show, create, delete.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


def add(app: typer.Typer) -> None:
    app.add_typer(topics, name="topics")


@topics.callback(invoke_without_command=True)
def _default(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)
    if context.invoked_subcommand is None:
        list_topics(url, as_json)


@topics.command("list", help="All topics.")
def list_topics(url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        answer = broker.get("topics")
        stores = 1 if as_json else _stores(broker)
    if as_json:
        print_json(answer)
        return
    found = sorted(answer["topics"], key=lambda topic: str(topic["name"]))
    print_table(
        ["topic", "queues#", "messages#", "retention", "created"],
        [_row(one, stores) for one in found],
        nothing="no topics yet; the first message makes one, or `tallystick topics create NAME`",
    )


@topics.command(help="One topic and its queues.")
def show(name: Name, url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        _show(broker, broker.get("topics", check_name(name, "topic")), as_json)


@topics.command(help="Make a topic, or change one that exists; queues can only be added.")
def create(
    name: Name,
    queues: Annotated[
        int | None, typer.Option("--queues", min=1, help="Number of queues; on a cluster, of each store.")
    ] = None,
    retention: Annotated[
        str | None, typer.Option("--retention", metavar="DURATION", help="How long messages are kept, e.g. 12h.")
    ] = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    spec: dict[str, Any] = {
        "queues": queues,
        "retention_ms": None if retention is None else parsed(retention, "--retention"),
    }
    given = {field: value for field, value in spec.items() if value is not None}
    with AnyLink(url) as broker:
        before = _existing(broker, check_name(name, "topic"))
        view = broker.put("topics", name, **given)
        note(f"topic {name} {_done(before, bool(given))}")
        _show(broker, view, as_json)


@topics.command(help="Delete a topic and all its messages.")
def delete(
    name: Name,
    yes: Yes = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    with AnyLink(url) as broker:
        view = broker.get("topics", check_name(name, "topic"))
        if not yes:
            confirm(f"delete topic {name} with {_messages(view):,} messages")
        broker.delete("topics", name)
    if as_json:
        print_json({"deleted": name})
    else:
        note(f"topic {name} deleted")


def _existing(broker: Link, name: str) -> dict[str, Any] | None:
    try:
        view: dict[str, Any] = broker.get("topics", name)
    except NotFound:
        return None
    return view


def _done(before: dict[str, Any] | None, given: bool) -> str:
    if before is None:
        return "created"
    changed = "was there already and is changed" if given else "was there already"
    further = len(before.get("missing_on", ()))
    return f"{changed}, made on {number_of(further, 'further store')}" if further else changed


def _stores(broker: Link) -> int:
    """Of the cluster; each of them has the same number of queues of a topic."""
    try:
        return max(1, len(broker.get("cluster")["stores"]))
    except NotFound:  # the broker is older than clusters are
        return 1


def _show(broker: Link, view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_table(["topic", "queues#", "messages#", "retention", "created"], [_row(view, _stores(broker))])
    sys.stdout.write("\n")
    print_table(
        ["queue#", "start#", "end#", "messages#"],
        [[queue, start, end, end - start] for queue, (start, end) in enumerate(_ranges(view))],
    )


def _row(view: dict[str, Any], stores: int) -> list[Any]:
    each, having = view["queues"] // stores, stores - len(view.get("missing_on", ()))
    if having < stores:
        told = f"{each * having:,} ({having:,} of {stores:,} stores)"
    else:
        told = view["queues"] if stores == 1 else f"{view['queues']:,} ({each:,} \u00d7 {stores:,} stores)"
    return [view["name"], told, _messages(view), _retention(view), when(view["created_at"])]


def _ranges(view: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(view["starts"], view["ends"], strict=True))


def _messages(view: dict[str, Any]) -> int:
    return sum(end - start for start, end in _ranges(view))


def _retention(view: dict[str, Any]) -> str:
    return duration(view["retention_ms"])
