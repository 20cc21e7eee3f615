"""`tallystick groups`: how far consumer groups are, and moving them elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallystick.cli.confirm import Yes, confirm
from tallystick.cli.links import AnyLink
from tallystick.cli.options import Json, Url
from tallystick.cli.output import ago, note, print_json, print_table, when
from tallystick.cli.times import WHEN, moment
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.names import check_name
from tallystick.link import Link

Name = Annotated[str, typer.Argument(metavar="GROUP")]

groups = typer.Typer(help="Consumer groups: list (also without a word), show, reset.", rich_markup_mode=None)


def add(app: typer.Typer) -> None:
    app.add_typer(groups, name="groups")


@groups.callback(invoke_without_command=True)
def _default(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)
    if context.invoked_subcommand is None:
        list_groups(url, as_json)


@groups.command("list", help="All consumer groups, one line for each of their topics.")
def list_groups(url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        answer = broker.get("groups")
    if as_json:
        print_json(answer)
        return
    _overview(answer["groups"])


@groups.command(help="One consumer group, queue by queue.")
def show(group: Name, url: Url = "", as_json: Json = False) -> None:
    with AnyLink(url) as broker:
        answer = broker.get("groups", check_name(group, "group"))
    if not answer["groups"]:
        raise NotFound(f"there is no consumer group {group!r}; `tallystick groups` lists those there are")
    if as_json:
        print_json(answer)
        return
    _show(answer["groups"])


@groups.command(
    help="Move a consumer group to another place of a topic. Messages that its members hold are taken away."
)
def reset(
    group: Name,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic in which it is moved.")],
    earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first message there is.")] = False,
    latest: Annotated[bool, typer.Option("--to-latest", help="Past the last message there is.")] = False,
    places: Annotated[
        list[str] | None,
        typer.Option("--to-offset", metavar="QUEUE:OFFSET", help="To this offset of a queue; may be repeated."),
    ] = None,
    time: Annotated[
        str | None, typer.Option("--to-time", metavar="TIME", help=f"To what was stored then or later: {WHEN}.")
    ] = None,
    yes: Yes = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    check_name(group, "group")
    check_name(topic, "topic")
    if [earliest, latest, bool(places), time is not None].count(True) != 1:
        raise InvalidRequest("say where to: one of --to-earliest, --to-latest, --to-offset and --to-time")
    with AnyLink(url) as broker:
        where, words = _destination(broker, earliest, places, time)
        if not yes:
            held = broker.get("groups", group, "offsets", topic=topic).get("leased", 0)
            taken = f", and take {held:,} messages from its members" if held else ""
            confirm(f"move group {group} in topic {topic} to {words}{taken}")
        view = broker.post("groups", group, "reset", topic=topic, **where)
    if as_json:
        print_json(view)
        return
    note(f"group {group} is moved")
    _show([view])


def _destination(
    broker: Link, earliest: bool, places: list[str] | None, time: str | None
) -> tuple[dict[str, Any], str]:
    """Where a group is to go, as the broker wants it and in words."""
    if places:
        offsets = dict(_place(text) for text in places)
        return {"offsets": offsets}, ", ".join(f"offset {offset} of queue {queue}" for queue, offset in offsets.items())
    if time is not None:
        # How long ago is counted by the broker's clock, as the times of its messages are.
        timestamp = moment(time, "--to-time", broker.get("info")["now_ms"])
        return {"timestamp": timestamp}, f"what was stored at {when(timestamp)} or later"
    word = "earliest" if earliest else "latest"
    return {"to": word}, f"the {word} message"


def _place(text: str) -> tuple[int, int]:
    queue, _, offset = text.partition(":")
    if not (queue.isdecimal() and offset.isdecimal()):
        raise InvalidRequest(f"--to-offset: {text!r} is not a queue and an offset, such as 0:1200", field="--to-offset")
    return int(queue), int(offset)


def _show(views: list[dict[str, Any]]) -> None:
    _overview(views)
    print_table(
        ["\ntopic", "\nqueue#", "\noffset#", "\nend#", "\nlag#"],
        [
            [view["topic"], queue["queue"], queue["offset"], queue["end"], queue["lag"]]
            for view in views
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
