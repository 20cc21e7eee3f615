"""`tallystick groups`: how far consumer groups are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallystick.cli.options import Json, Url
from tallystick.cli.printing import ago, print_json, print_table
from tallystick.core.errors import NotFound
from tallystick.core.names import check_name
from tallystick.link import Link

groups = typer.Typer(help="Consumer groups: list (also without a word), show.", rich_markup_mode=None)


def add(app: typer.Typer) -> None:
    app.add_typer(groups, name="groups")


@groups.callback(invoke_without_command=True)
def _default(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)
    if context.invoked_subcommand is None:
        list_groups(url, as_json)


@groups.command("list", help="All consumer groups, one line for each of their topics.")
def list_groups(url: Url = "", as_json: Json = False) -> None:
    with Link(url) as broker:
        answer = broker.get("groups")
    if as_json:
        print_json(answer)
        return
    _overview(answer["groups"])


@groups.command(help="One consumer group, queue by queue.")
def show(group: Annotated[str, typer.Argument(metavar="GROUP")], url: Url = "", as_json: Json = False) -> None:
    with Link(url) as broker:
        answer = broker.get("groups", check_name(group, "group"))
    if not answer["groups"]:
        raise NotFound(f"there is no consumer group {group!r}; `tallystick groups` lists those there are")
    if as_json:
        print_json(answer)
        return
    _overview(answer["groups"])
    print_table(
        ["\ntopic", "\nqueue#", "\noffset#", "\nend#", "\nlag#"],
        [
            [view["topic"], queue["queue"], queue["offset"], queue["end"], queue["lag"]]
            for view in answer["groups"]
            for queue in view["queues"]
        ],
    )


def _overview(views: list[dict[str, Any]]) -> None:
    print_table(
        ["group", "topic", "lag#", "leased#", "oldest unsettled"],
        [
            [
                view["group"],
                view["topic"],
                view.get("lag", 0),
                view.get("leased", 0),
                ago(view.get("oldest_unsettled_at")),
            ]
            for view in sorted(views, key=lambda view: (view["group"], view["topic"]))
        ],
        nothing="no consumer groups yet",
    )
