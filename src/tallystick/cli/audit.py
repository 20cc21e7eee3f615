"""`tallystick audit`: who did what."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table, when
from tallystick.cli.times import WHEN, moment

PAGE = 1_000


def add(app: typer.Typer) -> None:
    app.command("audit", help="Who did what, from where; the newest first.")(audit)


def audit(
    who: Annotated[str | None, typer.Option("--who", metavar="NAME", help="Only what this one did.")] = None,
    action: Annotated[
        str | None, typer.Option("--action", metavar="WORD", help="Only deeds of this kind, such as resolve.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Lines at most.")] = 100,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help=f"Not before: {WHEN}.")] = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    after, lines = None, list[dict[str, Any]]()
    begin = None if since is None else max(0, moment(since, "--since", time.time_ns() // 1_000_000))
    with AnyLink(url) as broker:
        while len(lines) < limit:
            most = min(PAGE, limit - len(lines))
            page = broker.get("audit", limit=most, after=after, who=who, action=action, since=begin)
            lines += page["lines"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print_json({"lines": lines, "next": after})
        return
    print_table(
        ["when", "who", "known by", "from", "action", "subject"],
        [[when(one["at"]), *(one[part] for part in ("who", "kind", "source", "action", "subject"))] for one in lines],
        nothing="nothing was done that is written down",
    )
    if after is not None:
        note(f"there is more: --limit {limit * 10:,} shows it".replace(",", ""))
