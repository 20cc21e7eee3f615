"""The settings: `TALLYSTICK = {"URL": "http://127.0.0.1:7440", "GROUP": "shop"}`.

Every option of `Client` is one, in capital letters. Three have names of their own: `URL` (its `urls`); `DATABASES`, the
aliases of the databases with Tallystick's tables: check-backs are answered from them, and their outboxes re-driven; and
`VERIFIER`, which tells a broker's requests from a stranger's, or the dotted path of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from tallystick.barrier.adapters.django import opener_of
from tallystick.client.async_client import AsyncClient
from tallystick.client.base.settings import CheckBack, OpenConnection
from tallystick.client.client import Client
from tallystick.client.proof.verifier import Verifier, default_verifier
from tallystick.core.errors import TallystickError
from tallystick.core.urls import check_url
from tallystick.credentials.tokens import hidden

C = TypeVar("C")

NAME = "TALLYSTICK"
_OPTIONS = [name for name in inspect.signature(Client).parameters if name not in ("urls", "database")]
_REFUSALS = (TallystickError, TypeError, ValueError, AttributeError)
KEYS = {"URL": "urls", **{name.upper(): name for name in _OPTIONS}, "DATABASES": "database", "VERIFIER": "verifier"}
_NO_CLIENTS = ("DATABASES", "VERIFIER")


def given() -> dict[str, Any]:
    """The setting, if it is a dictionary with keys that are known."""
    found = _without_token_text(getattr(settings, NAME, {}))
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured(f"{NAME} is a dictionary of settings, not {type(found).__name__}")
    unknown = sorted(str(key) for key in found if key not in KEYS)
    if unknown:
        raise ImproperlyConfigured(f"{NAME}: unknown {', '.join(unknown)}; there are {', '.join(KEYS)}")
    return dict(found)


def _without_token_text(found: Any) -> Any:
    """So that no traceback shows the token, on Django's page for errors either."""
    if not isinstance(found, Mapping) or "TOKEN" not in found:
        return found
    return {key: hidden(value) if key == "TOKEN" else value for key, value in found.items()}


def aliases() -> list[str]:
    """The databases with Tallystick's tables."""
    found = given().get("DATABASES", [DEFAULT_DB_ALIAS])
    if not isinstance(found, list | tuple | set) or not all(isinstance(alias, str) for alias in found):
        raise ImproperlyConfigured(f"{NAME}['DATABASES'] is a list of database aliases, not {found!r}")
    unknown = [alias for alias in found if alias not in connections]
    if unknown:
        raise ImproperlyConfigured(
            f"{NAME}['DATABASES']: there is no database {', '.join(unknown)}; DATABASES has {', '.join(connections)}"
        )
    return list(found)


def barrier_table() -> str:
    table: str = given().get("BARRIER_TABLE", inspect.signature(Client).parameters["barrier_table"].default)
    return table


def verifier() -> Verifier | None:
    """That of the settings, or of the environment; None if neither has one."""
    found = given().get("VERIFIER")
    if found is None:
        return default_verifier()
    made = _imported(found)
    if not isinstance(made, Verifier):
        raise ImproperlyConfigured(f"{NAME}['VERIFIER'] is a tallystick.Verifier, not {type(made).__name__}")
    return made


def new_client() -> Client:
    """A client as the settings say. With databases it is at work from now on: it answers check-backs."""
    return _made(Client, [opener_of(alias) for alias in aliases()])


def refuse_wrong() -> None:
    """Raises what is wrong with the settings."""
    verifier()
    _made(AsyncClient, [])  # which does nothing before it is used


def _made(kind: Callable[..., C], databases: list[OpenConnection]) -> C:
    options = {KEYS[key]: value for key, value in given().items() if key not in _NO_CLIENTS}
    if isinstance(options.get("check"), Mapping):
        options["check"] = _check_back(options["check"])
    if "deciders" in options:
        options["deciders"] = {source: _imported(decider) for source, decider in options["deciders"].items()}
    try:
        return kind(**options, database=databases)
    except _REFUSALS as wrong:
        raise ImproperlyConfigured(_named(options, wrong)) from wrong


def _named(options: dict[str, Any], wrong: Exception) -> str:
    """What is wrong with which of the settings: the one that is refused by itself, too."""
    for key in [key for key, name in KEYS.items() if name in options]:
        value = options[KEYS[key]]
        try:
            AsyncClient(**{KEYS[key]: value})
        except TallystickError as refusal:
            return f"{NAME}[{key!r}]: {refusal}"
        except _REFUSALS as refusal:  # not the value itself: there may be a password in it
            return f"{NAME}[{key!r}]: a value of the type {type(value).__name__} is not what it takes ({refusal})"
    return f"{NAME}: {wrong}"


def _check_back(fields: Mapping[str, Any]) -> CheckBack:
    try:
        check = CheckBack(**{str(name).lower(): value for name, value in fields.items()})
        check.on_the_wire("", None)
        if check.url is not None:
            check_url(check.url, "url")
    except _REFUSALS as wrong:
        raise ImproperlyConfigured(f"{NAME}['CHECK']: {wrong}") from wrong
    return check


def _imported(named: Any) -> Any:
    """A decider or a verifier, or the dotted path of one."""
    return import_string(named) if isinstance(named, str) else named
