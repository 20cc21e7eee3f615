"""Checks of the arguments that clients, blocks and subscriptions take, made before anything begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tallystick.barrier.adapters.recognition import check_opener
from tallystick.client.base.settings import CheckBack, ClientOptions, Decider, OpenConnection
from tallystick.core.errors import InvalidRequest
from tallystick.core.headers import check_headers
from tallystick.core.names import check_name
from tallystick.core.urls import check_url

T = TypeVar("T")

_CLIENTS_OF_STORES = {"redis": "RedisDecider", "pymongo": "MongoDecider", "motor": "MongoDecider"}


def checked_openers(given: OpenConnection | Sequence[OpenConnection] | None) -> list[OpenConnection]:
    """What `database=` stands for: no function that opens a connection, one, or a list of them."""
    if given is None:
        return []
    openers: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for opener in openers:
        check_opener(opener, "database")
    return openers


def checked_check(check: CheckBack | None, check_after: float | None = None) -> CheckBack | None:
    """A `CheckBack` whose parts a broker can take, or None."""
    if check is not None and not isinstance(check, CheckBack):
        raise InvalidRequest(
            f"check: it must be a CheckBack (got {_shown(check)}). To answer check-backs with your own code, give "
            "the client deciders={source: decider}; to have a URL asked, give check=CheckBack(url=...).",
            field="check",
        )
    if check is None and check_after is None:
        return None
    described = (check or CheckBack()).on_the_wire("", check_after)
    if check is not None and check.url is not None:
        check_url(str(described.target), "check.url")
        check_headers(described.headers, "check.headers", str(described.target))
    return check


def checked_deciders(deciders: Mapping[str, Decider] | None) -> dict[str, Decider]:
    if deciders is None:
        return {}
    if not isinstance(deciders, Mapping):
        raise InvalidRequest(
            f"deciders: a mapping of sources to deciders is needed (got {_shown(deciders)}). Give "
            "deciders={'stock': RedisDecider(redis)}.",
            field="deciders",
        )
    return {check_name(source, "deciders"): checked_decider(one, source) for source, one in deciders.items()}


def checked_decider(decider: Decider, source: str) -> Decider:
    """Something with a method `decide(gid)`; a client of Redis or MongoDB is not one, though it has every attribute."""
    for base in type(decider).__mro__:
        made = _CLIENTS_OF_STORES.get(base.__module__.partition(".")[0])
        if made is not None:
            raise _no_decider(decider, source, f"Give {made}(...), made from it.")
    if isinstance(decider, type) or not callable(getattr(decider, "decide", None)):
        raise _no_decider(decider, source, "Give an object with a method decide(gid), such as RedisDecider(redis).")
    return decider


def _no_decider(given: Any, source: str, advice: str) -> InvalidRequest:
    return InvalidRequest(f"deciders[{source!r}]: it is no decider (got {_shown(given)}). {advice}", field="deciders")


def check_truths(database: OpenConnection | Sequence[OpenConnection] | None, options: ClientOptions) -> None:
    """For extensions of frameworks, which make their clients later: refuse at once what a client would refuse."""
    checked_openers(database)
    checked_check(options.get("check"), options.get("check_after"))
    checked_deciders(options.get("deciders"))


def check_flag(given: Any, field: str, advice: str) -> None:
    if not isinstance(given, bool):
        raise InvalidRequest(f"{field}: it must be True or False (got {_shown(given)}). {advice}", field=field)


def checked_tags(tags: Sequence[str] | None) -> list[str] | None:
    """A list of tags. One text would be taken for the list of its letters."""
    if tags is None:
        return None
    if isinstance(tags, str) or not isinstance(tags, Iterable) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidRequest(f"tags: a list of texts is needed (got {_shown(tags)}). Give tags=['new'].", field="tags")
    return list(tags)


def check_choice(given: Any, field: str, choices: Sequence[str]) -> None:
    if not isinstance(given, str) or given not in choices:
        raise InvalidRequest(f"{field}: it must be one of {', '.join(choices)} (got {_shown(given)}).", field=field)


def check_handler(handler: Callable[..., Any]) -> None:
    if not callable(handler):
        raise InvalidRequest(
            f"handler: a function is needed (got {_shown(handler)}). Put @ts.subscribe(...) above a function.",
            field="handler",
        )


def checked_count(given: Any, field: str, least: int, most: int | None = None) -> int:
    """A whole number, such as an offset or a number of messages."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given and (most is None or given <= most):
        return given
    wanted = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    raise InvalidRequest(f"{field}: it must be {wanted} (got {_shown(given)}).", field=field)


def checked_text(given: Any, field: str) -> str:
    if not isinstance(given, str):
        raise InvalidRequest(f"{field}: a text is needed (got {_shown(given)}).", field=field)
    return given


def checked_mapping(given: Any, field: str, advice: str) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{field}: a mapping is needed (got {_shown(given)}). {advice}", field=field)
    return dict(given)


def checked_offsets(given: Any, field: str = "offsets") -> dict[int, int]:
    """Offsets by queue."""
    found = checked_mapping(given, field, f"Give {field}={{queue: offset}}.")
    for number in (*found, *found.values()):
        checked_count(number, field, 0)
    return found


def checked_list(given: Iterable[T], kind: type[T], field: str, advice: str) -> list[T]:
    """A list of objects of one kind, such as the messages to send."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidRequest(f"{field}: a list is needed (got {_shown(given)}). {advice}", field=field)
    found = list(given)
    for one in found:
        if not isinstance(one, kind):
            raise InvalidRequest(f"{field}: each must be {kind.__name__} (got {_shown(one)}). {advice}", field=field)
    return found


def _shown(given: Any) -> str:
    if isinstance(given, str | int | float):
        return repr(given)[:80]
    kind = given if callable(given) and hasattr(given, "__qualname__") else type(given)
    module = getattr(kind, "__module__", "builtins")
    return str(kind.__qualname__) if module == "builtins" else f"{module}.{kind.__qualname__}"
