"""Tokens, and where they are found. Known to whoever sends them and to nobody else: a token is in no repr, no error, no
local variable of a frame that an error passes through, and in no pickle."""

from __future__ import annotations

import logging
import os
import re
from typing import Any, NoReturn, Protocol, Self

from tallystick.changing_file import LOOK_SECONDS, ChangingFile
from tallystick.core.errors import ConfigError, InvalidRequest

log = logging.getLogger("tallystick.client")

TOKEN, TOKEN_FILE = "TALLYSTICK_TOKEN", "TALLYSTICK_TOKEN_FILE"
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
        if trouble := self.trouble():
            raise InvalidRequest(f"{named}: {trouble}", field="token")
        return self

    def trouble(self) -> str:
        """Why it cannot be sent, in words that do not show it."""
        if not self._text:
            return "there is no token in it"
        if len(self._text) > LONGEST_TOKEN or not _FORM.match(self._text):
            return (
                "this is no token: it has spaces, control characters or ends of lines in it, or letters that "
                f"are not ASCII, or more than {LONGEST_TOKEN} of them"
            )
        return ""

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
    """In the environment of whichever process asks. A process that has found it keeps it: programs take secrets out of
    their environment once they have started."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._token = SecretToken("")
        self._told = False

    def current(self) -> SecretToken:
        found = os.environ.get(self._name, "")
        if found and found != self._token.reveal():
            self._take(SecretToken(found))
        elif not found and not self._token.reveal():
            raise InvalidRequest(
                f"{self._name} is not set in this process, as it was where the work began. For Spark's executors use "
                f"option tokenFile, or set spark.executorEnv.{self._name} in a properties file. In the session builder "
                "or with --conf, `ps` would show the token",
                field="token",
            )
        return self._token

    def _take(self, token: SecretToken) -> None:
        if not self._token.reveal():
            self._token = token.checked(self._name)
        elif not token.trouble():
            self._token, self._told = token, False
        elif not self._told:
            self._told = True
            log.error("%s: %s; the token before it is used", self._name, token.trouble())

    def __repr__(self) -> str:
        return f"${self._name}"

    def __reduce__(self) -> tuple[type[TokenVariable], tuple[str]]:
        return TokenVariable, (self._name,)


class TokenFile:
    """In a file, which is read again when it has changed: a new token needs no restart."""

    def __init__(self, path: str, look_seconds: float = LOOK_SECONDS) -> None:
        self._path, self._look_seconds = path, look_seconds
        self._file: ChangingFile[SecretToken] | None = None

    def current(self) -> SecretToken:
        if self._file is None:
            self._file = self._opened()
        return self._file.value

    def _opened(self) -> ChangingFile[SecretToken]:
        try:
            return ChangingFile(self._path, _in_a_file, "token_file", look_seconds=self._look_seconds)
        except ConfigError as wrong:
            raise InvalidRequest(wrong.detail, field="token_file") from None

    def __repr__(self) -> str:
        return self._path

    def __reduce__(self) -> tuple[type[TokenFile], tuple[str]]:
        return TokenFile, (self._path,)


def _in_a_file(text: str) -> SecretToken:
    token = SecretToken(text.strip())
    if trouble := token.trouble():
        raise ValueError(trouble)
    return token
