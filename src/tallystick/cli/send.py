"""`tallystick send`: one message, from an argument or from standard input."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from tallystick.cli.durations import parsed
from tallystick.cli.options import Json, Url
from tallystick.cli.printing import note, print_json
from tallystick.client import Client
from tallystick.core.errors import InvalidRequest

TIMEOUT_SECONDS = 10.0


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
        Literal["0", "1", "2"],
        typer.Option("--level", help="0: not waited for; 1: confirmed, may arrive twice; 2: once."),
    ] = "2",
    gid: Annotated[
        str | None, typer.Option("--gid", help="Name for level 2: sent again, it is not added again.")
    ] = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    content = sys.stdin.buffer.read() if value == "-" else value.encode()
    seconds = None if delay is None else parsed(delay, "--delay") / 1000
    with Client(url, timeout=TIMEOUT_SECONDS) as client:
        sent = client.send(
            topic, content, key=key, headers=_headers(header or []), tag=tag, delay=seconds, level=int(level), gid=gid
        )
    if as_json:
        print_json(
            {
                "gid": sent.gid,
                "duplicate": sent.duplicate,
                "positions": [{"topic": at.topic, "queue": at.queue, "offset": at.offset} for at in sent.positions],
            }
        )
        return
    note("done")


def _headers(given: list[str]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given]
    wrong = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if wrong is not None:
        raise InvalidRequest(f"--header: {wrong!r} does not have the form name=value", field="header")
    return {name: value for name, _, value in pairs} or None
