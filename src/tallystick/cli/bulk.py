"""Lists and deeds that concern many transactions: page after page, and one failure that does not stop the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer

from tallystick.cli.failures import exit_code, report
from tallystick.cli.links import AnyLink
from tallystick.cli.output import print_json
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.names import check_gid
from tallystick.link import Link

PAGE = 500
View = dict[str, Any]


def pages(broker: Link, name: str, **query: str | None) -> Iterator[View]:
    """Page after page of what fits, of the list that the broker keeps under this name."""
    after: str | None = None
    while True:
        page = broker.get(name, **query, limit=PAGE, after=after)
        yield from page[name]
        after = page["next"]
        if after is None:
            return


def first(views: Iterator[View], limit: int) -> tuple[list[View], bool]:
    """The first `limit`, and whether there are more."""
    found: list[View] = []
    for view in views:
        if len(found) == limit:
            return found, True
        found.append(view)
    return found, False


def do_to_each(
    url: str, as_json: bool, gids: list[str], act: Callable[[Link, str], View], show: Callable[[list[View]], None]
) -> None:
    """Do one thing to each transaction, and show those to which it was done. Ends with the first failure's code."""
    done, failures = _each(url, gids, act)
    if as_json:
        print_json({"transactions": done, "failed": len(failures)})
    elif done or not failures:
        show(done)
    if failures:
        raise typer.Exit(exit_code(failures[0]))


def _each(url: str, gids: list[str], act: Callable[[Link, str], View]) -> tuple[list[View], list[TallystickError]]:
    """Do one thing to each; what fails is told and does not keep the others from it. What was done, what failed."""
    done: list[View] = []
    failures: list[TallystickError] = []
    with AnyLink(url) as broker:
        for gid in _progress(gids):
            try:
                done.append(act(broker, check_gid(gid)))
            except BrokerUnavailable:
                raise  # the others would fail alike
            except TallystickError as error:
                failures.append(error)
                report(error)
    return done, failures


def _progress(gids: list[str]) -> Iterator[str]:
    """The gids, with a bar on the terminal when there are many."""
    if len(gids) < PAGE or not sys.stderr.isatty():
        yield from gids
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(gids, description="transactions", console=Console(stderr=True), transient=True)
