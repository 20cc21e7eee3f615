"""`tallystick tx`: look at transactions, and decide or resume what nobody could tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from tallystick.cli.bulk import View, do_to_each, first, pages
from tallystick.cli.calls import print_calls
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import ago, note, print_json, print_table, when
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid, check_name
from tallystick.link import Link

tx = typer.Typer(help="Transactions: list, show; and an operator's commit, rollback, resume.", rich_markup_mode=None)

Gids = Annotated[list[str], typer.Argument(metavar="GID...")]
State = Literal["prepared", "parked", "committed", "rolled_back"]
OfGroup = Annotated[str | None, typer.Option("--group", help="Only of this producer group.")]


def add(app: typer.Typer) -> None:
    app.add_typer(tx, name="tx", no_args_is_help=True)


@tx.callback()
def _root(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)


@tx.command("list", help="Transactions: parked ones, then prepared ones, then resolved ones with the newest first.")
def list_transactions(
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    group: OfGroup = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most this many.")] = 100,
    url: Url = "",
    as_json: Json = False,
) -> None:
    with AnyLink(url) as broker:
        found, more = first(_scan(broker, state, group), limit)
    if as_json:
        print_json({"transactions": found, "more": more})
        return
    _overview(found)
    if more:
        note(f"there are more than {limit}; list them with --limit")


@tx.command(help="All that is known of one transaction, its calls included.")
def show(gid: Annotated[str, typer.Argument(metavar="GID")], url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        view = broker.get("transactions", check_gid(gid))
        calls = broker.get("transactions", gid, "calls")["calls"] if view.get("calls") else []
    if as_json:
        print_json(view | {"calls": calls} if calls else view)
        return
    print_table(
        ["field", "value"], [(name, when(value) if name.endswith("_at") else value) for name, value in view.items()]
    )
    if calls:
        sys.stdout.write("\n")
        print_calls(calls)


@tx.command(help="Commit: its messages become visible. For one nobody else will decide.")
def commit(gids: Gids, url: Url = "", as_json: Json = False) -> None:
    do_to_each(
        url, as_json, gids, lambda broker, gid: broker.post("transactions", gid, "commit", by="operator"), _overview
    )


@tx.command(help="Roll back: its messages are dropped. For one nobody else will decide.")
def rollback(gids: Gids, url: Url = "", as_json: Json = False) -> None:
    do_to_each(
        url, as_json, gids, lambda broker, gid: broker.post("transactions", gid, "rollback", by="operator"), _overview
    )


@tx.command(help="Check parked transactions again, from the first check on.")
def resume(
    gids: Annotated[list[str] | None, typer.Argument(metavar="[GID]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
    group: OfGroup = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    if bool(gids) == every:
        raise InvalidRequest("tx resume: give the gids, or --all for every parked transaction", field="gid")
    with AnyLink(url) as broker:
        wanted = [view["gid"] for view in _scan(broker, "parked", group)] if every else gids or []
    do_to_each(url, as_json, wanted, lambda broker, gid: broker.post("transactions", gid, "resume"), _overview)


def _scan(broker: Link, state: str | None, group: str | None) -> Iterator[View]:
    if group is not None:
        check_name(group, "group")
    return pages(broker, "transactions", state=state, group=group)


def _overview(views: list[View]) -> None:
    print_table(
        ["gid", "state", "group", "messages#", "age", "checks#", "next check", "by", "last error"],
        [
            [
                view["gid"],
                view["state"],
                view.get("group"),
                view.get("messages", 0),
                ago(view.get("created_at")),
                view.get("checks", 0),
                ago(view.get("next_check_at")) if view["state"] == "prepared" else "",
                view.get("resolved_by"),
                view.get("last_error"),
            ]
            for view in views
        ],
        nothing="no such transactions",
    )
