"""Tokens, and where they are found. Known to whoever sends them and to nobody else: a token is in no repr, no error, no
local variable of a frame that an error passes through, and in no pickle."""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any, NoReturn, Protocol, Self

from tallystick.core.errors import InvalidRequest

log = logging.getLogger("tallystick.client")

TOKEN, TOKEN_FILE = "TALLYSTICK_TOKEN", "TALLYSTICK_TOKEN_FILE"
LOOK_SECONDS = 1.0
"""How often it is looked whether a token's file has changed."""
LONGEST_TOKEN = 16 * 1024
_FORM = re.compile(r"[\x21-\x7e]+\Z")  # one word of a header's value


class SecretToken:
    """A token that shows its text to nobody but the broker: in a log, or among the variables of a traceback, it is
    `SecretToken(***)`. It is not pickled, either."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def current(self) -> SecretToken:
        return self

    def checked(self, named: str) -> Self:
        """InvalidRequest, in words that do not show it, if it cannot be sent."""
        if not isinstance(self._text, str):
            raise InvalidRequest(f"{named}: a token is text, not {type(self._text).__name__}", field="token")
        if not self._text:
            raise InvalidRequest(f"{named}: there is no token in it", field="token")
        if len(self._text) > LONGEST_TOKEN or not _FORM.match(self._text):
            raise InvalidRequest(
                f"{named}: this is no token: it has spaces, control characters or ends of lines in it, or letters that "
                f"are not ASCII, or more than {LONGEST_TOKEN} of them",
                field="token",
            )
        return self

    def __repr__(self) -> str:
        return "SecretToken(***)"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a token is not pickled: other processes have it in {TOKEN}, or in a file ({TOKEN_FILE})")


def hidden(token: str | SecretToken | None) -> SecretToken | None:
    """A token as no traceback shows it. Called before anything can fail, and refuses nothing itself."""
    return token if token is None or isinstance(token, SecretToken) else SecretToken(token)


class TokenSource(Protocol):
    """Where a token is found, now."""

    def current(self) -> SecretToken: ...


class TokenVariable:
    """In the environment of whichever process asks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._token = SecretToken("")

    def current(self) -> SecretToken:
        if os.environ.get(self._name, "") != self._token.reveal():
            self._token = SecretToken(os.environ.get(self._name, ""))
        if not self._token.reveal():
            raise InvalidRequest(
                f"{self._name} is not set in this process, as it was where the work began; for Spark's executors set "
                f"spark.executorEnv.{self._name}, or use option tokenFile",
                field="token",
            )
        return self._token.checked(self._name)

    def __repr__(self) -> str:
        return f"${self._name}"

    def __reduce__(self) -> tuple[type[TokenVariable], tuple[str]]:
        return TokenVariable, (self._name,)


class TokenFile:
    """In a file, which is read again when it has changed: a new token needs no restart."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._token: SecretToken | None = None
        self._stamp: tuple[int, ...] = ()
        self._look_at = 0.0

    def current(self) -> SecretToken:
        now = time.monotonic()
        if self._token is None or now >= self._look_at:
            self._token = self._read() if self._token is None else self._read_again(self._token)
            self._look_at = now + LOOK_SECONDS
        return self._token

    def _read(self) -> SecretToken:
        try:
            stamp = stamp_of(self._path)
            with open(self._path, encoding="ascii", errors="replace") as file:
                token = SecretToken(file.read(LONGEST_TOKEN + 2).strip())
        except OSError as failure:
            raise InvalidRequest(
                f"token_file: {self._path} cannot be read ({failure.strerror})", field="token_file"
            ) from None
        token.checked(f"token_file {self._path}")
        self._stamp = stamp
        return token

    def _read_again(self, known: SecretToken) -> SecretToken:
        try:
            return known if stamp_of(self._path) == self._stamp else self._read()
        except (OSError, InvalidRequest) as failure:  # it may be just being replaced
            if self._stamp:
                log.warning("the token is used as it was before: %s", failure)
            self._stamp = ()
            return known

    def __repr__(self) -> str:
        return self._path

    def __reduce__(self) -> tuple[type[TokenFile], tuple[str]]:
        return TokenFile, (self._path,)


def stamp_of(path: str) -> tuple[int, ...]:
    """Changes when the file is written, or another one is put in its place."""
    seen = os.stat(path)
    return seen.st_mtime_ns, seen.st_ino, seen.st_size
