"""What the doctor says of one thing."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """`ok`; `note`: worth knowing, nothing is broken; `problem`: does not work, or promises are at risk."""

    subject: str
    status: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""
