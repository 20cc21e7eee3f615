"""The Lua scripts, and what their answers mean: no input or output, the same for sync and async clients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from tallystick.barrier.branch_key import Branch
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.redis.errors import Refused, UnknownMark
from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import Outcome

Effect = Literal["done", "duplicate", "skipped"]
Value = str | bytes | int | float

# What a barrier key holds: dtm's words, so that its clients read ours and we read theirs.
DONE = "op"
ROLLED_BACK = "rollback"
_OUTCOMES: dict[str, Outcome] = {DONE: "committed", ROLLED_BACK: "rolled_back"}


class Ran(NamedTuple):
    """What became of an effect; `value` is what it returned, if it was done now."""

    effect: Effect
    value: Any = None


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the name under which Redis remembers it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        # The name that Redis itself gives the text; nothing secret depends on it.
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Value]


@cache
def _source(name: str) -> str:
    return resources.files(__package__).joinpath("lua", name).read_text(encoding="utf-8")


@lru_cache(maxsize=128)
def _guarded(effect: str) -> Script:
    """The effect as the body of a function of its own keys and arguments, and the guard that runs it."""
    return Script.of(f"local function effect(KEYS, ARGV)\n{effect}\nend\n{_source('guard.lua')}")


@cache
def _decide_script() -> Script:
    return Script.of(_source("decide.lua"))


def adjustment() -> str:
    """The effect that `adjust` runs."""
    return _source("adjust.lua")


def barrier_key(prefix: str, branch: Branch) -> str:
    """dtm's layout."""
    return f"{prefix}{branch.gid}-{branch.branch_id}-{branch.op}-{branch.barrier_id}"


def guarded_call(
    prefix: str, branch: Branch, expire: int, effect: str, keys: Sequence[str], args: Sequence[Value]
) -> Call:
    """The call that runs an effect once."""
    if effect.startswith("#!"):
        raise InvalidRequest(
            "script: without a first line '#!lua', for it becomes part of another script", field="script"
        )
    own, origin = barrier_key(prefix, branch), branch.origin
    other = own if origin is None else barrier_key(prefix, origin)
    direction = "forward" if origin is None else "reverse"
    return Call(_guarded(effect), [own, other, *keys], [expire, direction, *args])


def deciding_call(prefix: str, branch: Branch, expire: int) -> Call:
    branch.require_message()
    return Call(_decide_script(), [barrier_key(prefix, branch)], [expire])


def ran(branch: Branch, reply: Any) -> Ran:
    """What a guarded call answered; raises `Refused` or `AlreadyDecided`."""
    word, *rest = reply
    match _text(word), rest:
        case "done", _:
            return Ran("done", rest[0] if rest else None)
        case "skipped", _:
            return Ran("skipped")
        case "marked", [mark]:
            return Ran(_marked(branch, _text(mark)))
        case "refused", [reason]:
            raise Refused(_text(reason))
    raise UnknownMark(f"the barrier of {branch.gid} was answered {reply!r}, which means nothing here")


def _marked(branch: Branch, mark: str) -> Effect:
    if mark == DONE:
        return "duplicate"
    if mark != ROLLED_BACK:
        raise _unknown(branch, mark)
    if branch.is_message:
        raise AlreadyDecided(branch.gid, "rolled_back")
    return "skipped"  # what would take this back came first


def decided(branch: Branch, reply: Any) -> Outcome:
    mark = _text(reply)
    if mark not in _OUTCOMES:
        raise _unknown(branch, mark)
    return _OUTCOMES[mark]


def _unknown(branch: Branch, mark: str) -> UnknownMark:
    return UnknownMark(
        f"the barrier key of {branch.gid} holds {mark[:80]!r}, not {DONE!r} or {ROLLED_BACK!r}; "
        "find out who wrote it: nothing is decided by it"
    )


def _text(value: Any) -> str:
    """As the client returns it: bytes, or text with decode_responses."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
