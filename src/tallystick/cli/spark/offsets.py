"""Offsets on the command line of the jobs that take ranges."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tallystick.core.errors import InvalidRequest

Offsets = dict[int, int]
T = TypeVar("T")


def queue_offsets(text: str, option: str) -> Offsets:
    """{"0": 1200, "1": 900}: an offset for each queue."""
    return _decoded(text, option, Offsets, '{"0": 1200, "1": 900}')


def topic_offsets(text: str, option: str) -> dict[str, Offsets]:
    """{"orders": {"0": 1200}}: the same for each topic."""
    return _decoded(text, option, dict[str, Offsets], '{"orders": {"0": 1200, "1": 900}}')


def _decoded(text: str, option: str, kind: type[T], such_as: str) -> T:
    if not text:
        return kind()
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(
            f"{option}: {text[:200]!r} is not offsets such as {such_as}: {error}", field=option
        ) from error
