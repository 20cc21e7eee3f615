"""`tallystick store`: what is done to a store while no broker works on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer

from tallystick.cli.options import Json
from tallystick.cli.output import note, number_of, print_json, print_table
from tallystick.extras import need

store = typer.Typer(
    help="Stores: make those of a cluster; copy one while no broker works on it.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

_SECRETS = (
    "Others on this machine can read a process's arguments: keep passwords in a file that the driver knows, such as "
    "~/.pgpass."
)
_EPILOG = (
    "FROM and TO are a data directory or the address of a shared engine: postgresql://, mysql:// or redis://. "
    + _SECRETS
)
_ADDRESS = "Data directory, or the address of a shared engine."


def add(app: typer.Typer) -> None:
    app.add_typer(store, name="store")


@store.command(
    "create", help="Make the tables and the stores of a cluster. What is there already stays.", epilog=_SECRETS
)
def create_command(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Address of a shared engine.")],
    stores: Annotated[
        int, typer.Option("--stores", min=0, help="How many, said once and for all; 0: as it was made, or 8.")
    ] = 0,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements that make the tables, and ask nobody.")
    ] = False,
    as_json: Json = False,
) -> None:
    need("server")
    from tallystick.broker.cluster.joining import created  # late: the engines are large
    from tallystick.store.shared.opening import sql_at

    if sql:
        sys.stdout.write(sql_at(address) or "-- This engine has no tables.\n")
        return
    count, new = created(address, stores)
    if as_json:
        print_json({"stores": count, "created": new})
    elif new:
        note(f"made a cluster with {number_of(count, 'store')}; brokers need no right to make tables now")
    else:
        note(f"the cluster is there already, with {number_of(count, 'store')}; nothing in it was changed")


@store.command("copy", help="Copy a store to another engine, and read the copy back.", epilog=_EPILOG)
def copy_command(
    source: Annotated[str, typer.Argument(metavar="FROM", help=_ADDRESS)],
    target: Annotated[str, typer.Argument(metavar="TO", help=_ADDRESS)],
    from_store: Annotated[
        int | None, typer.Option("--from-store", min=0, help="Number of the store on a shared engine. [default: 0]")
    ] = None,
    to_store: Annotated[
        int | None, typer.Option("--to-store", min=0, help="Number of the store on a shared engine. [default: 0]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what the target holds.")] = False,
    take: Annotated[
        bool, typer.Option("--take", help="Take a shared store also from a broker that is alive and works on it.")
    ] = False,
    allow_weak_durability: Annotated[
        bool,
        typer.Option(
            "--allow-weak-durability",
            envvar="TALLYSTICK_ALLOW_WEAK_DURABILITY",
            help="Copy to a server that may lose what it has acknowledged.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    need("server")
    from tallystick.broker.cluster.membership import LEASE_MS  # late: the engines are large
    from tallystick.store.copying.places import CopyPlace, CopySettings, copy_store, left_behind

    copied_from = CopyPlace(source, from_store)
    with _bars() as (on_copied, on_read_back):
        made = copy_store(
            copied_from,
            CopyPlace(target, to_store),
            CopySettings(LEASE_MS, force, take, allow_weak_durability),
            on_copied,
            on_read_back,
        )
    left = left_behind(copied_from)
    if as_json:
        print_json({**msgspec.to_builtins(made), "not_copied": msgspec.to_builtins(left)})
        return
    print_table(
        [f"store {made.store}", "keys#", "checksum"],
        [
            ["copied", made.copied.keys, made.copied.checksum],
            ["read back", made.read_back.keys, made.read_back.checksum],
        ],
    )
    note("the copy has the id of the original: start one of the two, and never both")
    if left:
        each = ", ".join(f"store {one.number} ({one.store}) with {one.messages:,}" for one in left)
        note(f"messages of other stores were not copied: {each}; copy each to a place of its own, --from-store N")


@contextmanager
def _bars() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """What is told how many keys were copied and read back; shown where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:>10}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        copying = bars.add_task("copied", total=None)  # nobody knows how many keys a store has
        reading = bars.add_task("read back", total=None)

        def on_copied(keys: int) -> None:
            bars.update(copying, completed=keys)

        def on_read_back(keys: int) -> None:
            copied = bars.tasks[copying].completed
            bars.update(copying, total=copied)
            bars.update(reading, completed=keys, total=copied)

        yield on_copied, on_read_back
