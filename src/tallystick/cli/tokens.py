"""`tallystick tokens`: make, list and revoke tokens."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from tallystick.cli.options import Json, Url
from tallystick.cli.output import ago, note, print_json, print_table, when
from tallystick.cli.times import parsed
from tallystick.cli.token_places import Where, token_place
from tallystick.core.access import ROLES, Role, permissions_of
from tallystick.core.errors import InvalidRequest
from tallystick.core.token_records import TokenSpec

tokens = typer.Typer(help="Tokens: list (also without a word), create, revoke.", rich_markup_mode=None)

_EPILOG = (
    "A broker that runs is asked (--url). Before the first start, for the first admin's token, the store itself is "
    "written to: --data-dir DIR, or --store ADDRESS for a cluster. PATTERN is a name in which * stands for any "
    "characters."
)
Name = Annotated[str, typer.Argument(metavar="NAME")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The data directory itself, while no broker works on it."),
]
StoreAddress = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="The shared store of a cluster itself, while no broker works on it. Others can read it in ps: for "
        "PostgreSQL, keep the password in ~/.pgpass.",
    ),
]
Stores = Annotated[int, typer.Option("--stores", min=0, help="With --store: stores of a cluster that is made by this.")]
AllowWeak = Annotated[
    bool,
    typer.Option(
        "--allow-weak-durability",
        envvar="TALLYSTICK_ALLOW_WEAK_DURABILITY",
        help="With --store: also on a server that may lose what it has acknowledged.",
    ),
]
_PATTERN = "a name in which * stands for any characters: letters, digits, {}._:@- and *"
# The words of a specification: the options that they are given with, and what they have to be.
_OPTIONS = {
    "name": ("NAME", "a name: 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"),
    "roles": ("--role", f"one of {', '.join(get_args(Role))}"),
    "topics": ("--topic", _PATTERN),
    "groups": ("--group", _PATTERN),
    "hosts": ("--host", "a host, or host:port, in which * stands for any characters"),
    "expires_in_ms": ("--expires", "a time that it can be good for"),
    "max_in_flight": ("--max-in-flight", "a number of requests, at most 1,000,000"),
    "bytes_per_second": ("--bytes-per-second", "a number of bytes, at most 2^40"),
}
_KINDS = (("topics", "topic"), ("groups", "group"), ("hosts", "host"))


def add(app: typer.Typer) -> None:
    app.add_typer(tokens, name="tokens")


@tokens.callback(invoke_without_command=True)
def _default(context: typer.Context, url: Url = "", as_json: Json = False) -> None:
    context.obj = context.obj._replace(url=url, as_json=as_json)
    if context.invoked_subcommand is None:
        list_tokens(url=url, as_json=as_json)


@tokens.command("list", help="All tokens, without their secrets.", epilog=_EPILOG)
def list_tokens(
    data_dir: DataDir = None,
    store: StoreAddress = "",
    stores: Stores = 0,
    allow_weak_durability: AllowWeak = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    with token_place(Where(url, data_dir, store, stores, allow_weak_durability)) as place:
        found = place.tokens()
    if as_json:
        print_json({"tokens": found})
        return
    print_table(
        ["token", "id", "may", "made", "by", "expires"],
        [_row(one) for one in found],
        nothing="no tokens yet; `tallystick tokens create NAME --role ROLE` makes one",
    )
    for one in found:
        if missing := one.get("missing_on"):
            note(f"token {one['name']} is not on the stores {', '.join(missing)}: revoke it, and make another")


@tokens.command(help="Make a token. It is printed once, and cannot be shown again.", epilog=_EPILOG)
def create(
    name: Name,
    role: Annotated[
        list[str], typer.Option("--role", help=f"{', '.join(ROLES)}, or one permission. May be given again.")
    ],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="PATTERN", help="Topics it is for. [default: all]")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="PATTERN", help="Producer and consumer groups it is for. [default: all]"),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="PATTERN", help="Hosts, or host:port, that it may have called. [default: all]"),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="How long it is good for. [default: for ever]")
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option("--max-in-flight", min=0, help="Most requests under way at one broker; 0 for no limit.")
    ] = 0,
    bytes_per_second: Annotated[
        int, typer.Option("--bytes-per-second", min=0, help="Most bytes sent to one broker; 0 for no limit.")
    ] = 0,
    data_dir: DataDir = None,
    store: StoreAddress = "",
    stores: Stores = 0,
    allow_weak_durability: AllowWeak = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    patterns = {"topics": topic, "groups": group, "hosts": host}
    spec = _spec(
        name=name,
        roles=role,
        **{kind: given for kind, given in patterns.items() if given},
        limits={"max_in_flight": max_in_flight, "bytes_per_second": bytes_per_second},
        expires_in_ms=None if expires is None else parsed(expires, "--expires"),
    )
    with token_place(Where(url, data_dir, store, stores, allow_weak_durability)) as place:
        made = place.create(spec)
    if as_json:
        print_json(made)
        return
    sys.stdout.write(f"{made['token']}\n")
    note(f"token {name}: {_may(made['grants'])}; {_until(made)}")
    note("it is shown this once, and only a hash of it is kept: put it where it is needed now")


@tokens.command(help="Revoke a token. It is good for nothing from the moment that this is done.", epilog=_EPILOG)
def revoke(
    name: Name,
    data_dir: DataDir = None,
    store: StoreAddress = "",
    stores: Stores = 0,
    allow_weak_durability: AllowWeak = False,
    url: Url = "",
    as_json: Json = False,
) -> None:
    with token_place(Where(url, data_dir, store, stores, allow_weak_durability)) as place:
        place.revoke(name)
    if as_json:
        print_json({"revoked": name})
    else:
        note(f"token {name} revoked")


def _spec(**given: Any) -> TokenSpec:
    """What is wrong is told by the name of its option, before anybody is asked."""
    try:
        return msgspec.convert(given, TokenSpec)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at `$.")
        field, _, index = place.rstrip("`]").rpartition(".")[2].partition("[")
        option, wanted = _OPTIONS[field]
        value = given[field] if field in given else given["limits"][field]
        shown = repr(value[int(index)] if index else value)[:140]
        raise InvalidRequest(f"{option}: {shown} is not {wanted}", field=option) from error


def _row(view: dict[str, Any]) -> list[Any]:
    until = view.get("expires_at", 0)
    expires = "never" if not until else f"{when(until)} ({_left(until)})"
    return [view["name"], view["id"], _may(view["grants"]), when(view["created_at"]), view.get("created_by"), expires]


def _may(grants: list[dict[str, Any]]) -> str:
    """What grants allow, in words."""
    return "; ".join(f"may {_permissions(grant)} on {_objects(grant)}" for grant in grants)


def _permissions(grant: dict[str, Any]) -> str:
    found = frozenset().union(*map(permissions_of, grant["roles"]))
    return "do everything" if found >= ROLES["admin"] else ", ".join(sorted(found))


def _objects(grant: dict[str, Any]) -> str:
    named = [f"{kind} {_either(grant[kinds])}" for kinds, kind in _KINDS if grant.get(kinds)]
    others = [kinds for kinds, _ in _KINDS if not grant.get(kinds)]
    return ", ".join([*named, *(f"all {kinds}" for kinds in others)])


def _either(patterns: list[str]) -> str:
    return " or ".join(patterns)


def _until(made: dict[str, Any]) -> str:
    until = made.get("expires_at", 0)
    return f"until {when(until)}" if until else "until it is revoked"


def _left(until: int) -> str:
    return "over" if until <= time.time_ns() // 1_000_000 else ago(until)
