"""The grammar of names, checked while a request is decoded and never later.

Names are never used as paths, and no character in them has a meaning in a URL, a shell or SQL.
"""

from __future__ import annotations

import re
from typing import Annotated
from zlib import crc32

from msgspec import Meta

from tallystick.core.errors import InvalidRequest

DEAD_LETTERS = "dlq."
"""How the name of every dead-letter topic begins."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}\Z"
LONGEST_NAME = 127
# Braces: Redis Cluster hash tags, which dtm's users put into gids. Colons: application ids with a version.
GID_PATTERN = r"^[A-Za-z0-9{}][A-Za-z0-9{}._:@-]{0,127}\Z"
APP_PATTERN = r"^[A-Za-z0-9{}][A-Za-z0-9{}._:@-]{0,99}\Z"

TopicName = Annotated[str, Meta(pattern=NAME_PATTERN, description="letters, digits, '.', '_', '-'")]
GroupName = Annotated[str, Meta(pattern=NAME_PATTERN, description="letters, digits, '.', '_', '-'")]
Gid = Annotated[str, Meta(pattern=GID_PATTERN, description="letters, digits and {}._:@-, at most 128")]
PartId = Gid
AppId = Annotated[str, Meta(pattern=APP_PATTERN, description="letters, digits and {}._:@-, at most 100")]
LONGEST_KEY, LONGEST_TAG, LONGEST_HEADER_NAME, LONGEST_HEADER_VALUE = 1_024, 128, 128, 8_192  # in characters
MOST_HEADERS = 64  # of a message
Key = Annotated[str, Meta(max_length=LONGEST_KEY)]
HeaderName = Annotated[str, Meta(min_length=1, max_length=LONGEST_HEADER_NAME)]
HeaderValue = Annotated[str, Meta(max_length=LONGEST_HEADER_VALUE)]
Tag = Annotated[str, Meta(max_length=LONGEST_TAG)]
MemberName = Annotated[str, Meta(min_length=1, max_length=256)]

_NAME = re.compile(NAME_PATTERN)
_GID = re.compile(GID_PATTERN)
_APP = re.compile(APP_PATTERN)


def dead_letter_topic(group: str) -> str:
    """Where the messages go that a group of consumers could not handle: a valid name, and one for each group."""
    name = f"{DEAD_LETTERS}{group}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{crc32(group.encode()):08x}"


def is_name(text: str) -> bool:
    """Whether a topic or a group could be called so."""
    return _NAME.match(text) is not None


def check_name(name: str, field: str) -> str:
    """A topic or group name that came in a path or from the command line."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(
            f"{field} {_shown(name)} is not a valid name: 1 to 127 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit",
            field=field,
        )
    return name


def _shown(given: object) -> str:
    return repr(given[:140]) if isinstance(given, str) else f"{str(given)[:140]} (not a text)"


def check_gid(gid: str, field: str = "gid") -> str:
    """A gid that came in a path or from the command line."""
    if not isinstance(gid, str) or not _GID.match(gid):
        raise InvalidRequest(
            f"{field} {_shown(gid)} is not a valid gid: 1 to 128 letters, digits or {{}}._:@-, "
            "beginning with a letter, digit or brace",
            field=field,
        )
    return gid


def check_app(app: str, field: str = "app") -> str:
    """The name of an application in the ledger of batches."""
    if not _APP.match(app):
        raise InvalidRequest(
            f"{field} {app[:140]!r} is not a valid application id: 1 to 100 letters, digits or {{}}._:@-, "
            "beginning with a letter, digit or brace",
            field=field,
        )
    return app
