"""`tallystick calls`: what the broker has still to call, why it did not get through, and what an operator can do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from tallystick.cli.bulk import View, do_to_each, first, pages
from tallystick.cli.confirm import Yes, confirm
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import ago, note, print_json, print_table, when
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid
from tallystick.link import Link

calls = typer.Typer(help="Calls: list, show, hosts; and an operator's retry, resume, stop.", rich_markup_mode=None)

Gids = Annotated[list[str], typer.Argument(metavar="GID...")]


def add(app: typer.Typer) -> None:
    app.add_typer(calls, name="calls", no_args_is_help=True)


@calls.callback()
def _root(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)


@calls.command("list", help="Calls that are not done: those that wait for their time, and those that are parked.")
def list_calls(
    state: Annotated[Literal["waiting", "parked"] | None, typer.Option("--state", help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most this many.")] = 100,
    url: Url = "",
    as_json: Json = False,
) -> None:
    with AnyLink(url) as broker:
        found, more = first(pages(broker, "calls", state=state), limit)
    if as_json:
        print_json({"calls": found, "more": more})
        return
    print_table(
        ["gid", "branch", "state", "url", "attempts#", "next try", "age", "last error"],
        [[view["gid"], *_call(view), ago(view["created_at"]), view.get("last_error")] for view in found],
        nothing="no such calls",
    )
    if more:
        note(f"there are more than {limit}; list them with --limit")


@calls.command(help="The calls of one transaction, and what became of each.")
def show(gid: Annotated[str, typer.Argument(metavar="GID")], url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        view = broker.get("transactions", check_gid(gid), "calls")
    if as_json:
        print_json(view)
        return
    told = {name: when(value) if name.endswith("_at") else value for name, value in view.items() if name != "calls"}
    print_table(["field", "value"], told.items())
    sys.stdout.write("\n")
    print_calls(view.get("calls", []))


@calls.command(help="Make the calls that wait for their next try now, and check the transaction now if it is prepared.")
def retry(gids: Gids, url: Url = "", as_json: Json = False) -> None:
    do_to_each(url, as_json, gids, _hurry, _overview)


@calls.command(help="Make parked calls again, from the first attempt on.")
def resume(
    gids: Annotated[list[str] | None, typer.Argument(metavar="[GID]...")] = None,
    every: Annotated[bool, typer.Option("--all-parked", help="Of every transaction with parked calls.")] = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    if bool(gids) == every:
        raise InvalidRequest("calls resume: give the gids, or --all-parked for every parked call", field="gid")
    wanted = _parked(url) if every else gids or []
    do_to_each(url, as_json, wanted, lambda broker, gid: broker.post("transactions", gid, "calls", "resume"), _overview)


@calls.command(help="Give the calls of a transaction up: those that are not done are never made.")
def stop(gids: Gids, yes: Yes = False, url: Url = "", as_json: Json = False) -> None:
    if not yes:
        confirm(f"give up, for good, the calls of {', '.join(gids)} that are not done")
    do_to_each(url, as_json, gids, lambda broker, gid: broker.post("transactions", gid, "calls", "stop"), _overview)


@calls.command(help="The services that are called: what is under way, and which of them the broker takes for down.")
def hosts(url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        answer = broker.get("call-hosts")
    if as_json:
        print_json(answer)
        return
    print_table(
        ["host", "circuit", "under way#", "failures in a row#", "next probe"],
        [[*_host(view), ago(view.get("next_probe_at"))] for view in answer["hosts"]],
        nothing="no service was called yet",
    )


def print_calls(views: Iterable[View]) -> None:
    """The calls of one transaction, in their order."""
    print_table(
        ["branch", "state", "url", "attempts#", "next try", "done", "last error"],
        [[*_call(view), when(view.get("finished_at")), view.get("last_error")] for view in views],
        nothing="this transaction has no calls",
    )


def _call(view: View) -> list[str | int]:
    waits = ago(view.get("next_at")) if view["state"] == "waiting" else ""
    return [view["branch"], view["state"], view["url"], view.get("attempts", 0), waits]


def _host(view: View) -> list[str | int]:
    circuit = "open" if view.get("open") else "closed"
    return [view["name"], circuit, view.get("in_flight", 0), view.get("failures", 0)]


def _parked(url: str) -> list[str]:
    """The transactions with parked calls, each once."""
    with AnyLink(url) as broker:
        return list(dict.fromkeys(view["gid"] for view in pages(broker, "calls", state="parked")))


def _hurry(broker: Link, gid: str) -> View:
    broker.get("transactions", gid, "calls")  # one without calls is an error before anything happens
    broker.post("transactions", gid, "hurry")
    return dict(broker.get("transactions", gid, "calls"))


def _overview(views: list[View]) -> None:
    counts = [Counter(one["state"] for one in view.get("calls", [])) for view in views]
    print_table(
        ["gid", "state", "calls#", "done#", "waiting#", "parked#"],
        [
            [view["gid"], view["state"], count.total(), count["done"], count["waiting"], count["parked"]]
            for view, count in zip(views, counts, strict=True)
        ],
        nothing="no such transactions",
    )
