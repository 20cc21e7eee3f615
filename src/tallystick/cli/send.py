"""`tallystick send`: one message, from an argument or from standard input."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any, Literal

import typer

from tallystick.cli.credentials import given_files
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json
from tallystick.cli.times import parsed
from tallystick.core.errors import InvalidRequest, TallystickError

_LEVELS: tuple[Literal[0], Literal[1], Literal[2]] = (0, 1, 2)


def add(app: typer.Typer) -> None:
    app.command("send", help="Send a message; VALUE - reads it from standard input.")(send)


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    key: Annotated[str | None, typer.Option("--key", help="Messages of one key stay in order.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be repeated.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="A word that consumers may filter by.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Deliver later: 5s, 10m.")] = None,
    level: Annotated[
        int, typer.Option("--level", min=0, max=2, help="0: not waited for; 1: confirmed, may arrive twice; 2: once.")
    ] = 2,
    gid: Annotated[
        str | None, typer.Option("--gid", help="Name for level 2: sent again, it is not added again.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long a broker that is away is tried again.")
    ] = "5s",
    url: Url = "",
    as_json: Json = False,
) -> None:
    content = sys.stdin.buffer.read() if value == "-" else value.encode()
    seconds = None if delay is None else parsed(delay, "--delay") / 1000
    from tallystick.client import Client  # late: `--help` does without it

    logging.getLogger("tallystick.client.refusals").disabled = True  # a refusal ends this, and is its error
    with Client(url, timeout=parsed(timeout, "--timeout") / 1000, **given_files()) as client:
        sent = client.send(
            topic,
            content,
            key=key,
            headers=_headers(header or []),
            tag=tag,
            delay=seconds,
            level=_LEVELS[level],
            gid=gid,
        )
    if level == 0 and (why := client.stats.unconfirmed_refused):
        raise TallystickError(f"the message was not taken: {why}")
    places = [{"topic": at.topic, "queue": at.queue, "offset": at.offset} for at in sent.positions]
    if as_json:
        print_json({"gid": sent.gid, "duplicate": sent.duplicate, "positions": places})
    else:
        note(_told(sent.duplicate, level, places))


def _told(duplicate: bool, level: int, places: list[dict[str, Any]]) -> str:
    if duplicate:
        return "the broker had this gid already; nothing was added"
    if level == 0:
        return "sent, not confirmed"
    return ", ".join(_place(one) for one in places) or "sent"


def _place(place: dict[str, Any]) -> str:
    if place["offset"] < 0:
        return f"{place['topic']}: taken, to be delivered later"
    return f"{place['topic']}: queue {place['queue']}, offset {place['offset']}"


def _headers(given: list[str]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given]
    wrong = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if wrong is not None:
        raise InvalidRequest(f"--header: {wrong!r} does not have the form name=value", field="header")
    return {name: value for name, _, value in pairs} or None
