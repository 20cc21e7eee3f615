"""Options as Spark hands them over: text under names in any case, checked once, refused with the option's name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import msgspec

from tallystick.core.durations import milliseconds
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.credentials.tokens import TOKEN, TOKEN_FILE
from tallystick.link import addresses_of
from tallystick.spark.command_lines import refuse_shown

# Spark adds these to the options that the user gave. The paths are the arguments of load(), save() and start().
SPARKS_OWN = frozenset({"path", "paths", "checkpointlocation", "queryname"})
CREDENTIALS = ("tokenFile", "caFile", "certFile", "keyFile")
"""Options of everything that asks a broker."""
_TRUTH = {"true": True, "false": False}


class Given:
    """The options that were given, read by their documented names; a name that nobody knows is refused at once.

    `role` is what the options are for ("the source", "the sink"), as an error message says it.
    """

    def __init__(self, options: Mapping[str, str], known: Iterable[str], role: str) -> None:
        if any(name.lower() == "token" for name in options):
            raise _shown_token()
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}
        self._names = {name.lower(): name for name in (*known, *CREDENTIALS)}
        for name in self._values:
            self._check_name(name, role)

    def _check_name(self, name: str, role: str) -> None:
        if name in self._names or name in SPARKS_OWN:
            return
        if name.startswith("kafka."):
            raise refused(name, f"{role} reads no Kafka settings; the broker's address is option 'url'")
        # With a dot or underscores in front: settings of Spark and of catalogs (serialization.format, option.url).
        if "." in name or name.startswith("__"):
            return
        close = difflib.get_close_matches(name, self._names, n=1, cutoff=0.7)
        meant = f"; did you mean {self._names[close[0]]!r}?" if close else "."
        raise refused(name, f"{role} has no such option{meant} It takes: {', '.join(sorted(self._names.values()))}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default)

    def required(self, name: str, such_as: str) -> str:
        found = self.text(name)
        if not found:
            raise refused(name, f"is needed, such as .option({name!r}, {such_as!r})")
        return found

    def topics_of_path(self) -> tuple[str, ...]:
        """The topics that are named by the argument of load(), save() or start(), as users of Delta and files do."""
        try:
            several = msgspec.json.decode(self.text("paths", "[]"), type=list[str])
        except msgspec.MsgspecError as error:
            raise refused("paths", f"must be a JSON list of topics (got {self.text('paths')[:200]!r})") from error
        names = [name.strip() for text in (self.text("path"), *several) for name in text.split(",")]
        return tuple(dict.fromkeys(check_name(name, "path") for name in names if name))

    def check_path(self, option: str, topics: tuple[str, ...] = ()) -> None:
        """Refuse an argument of load(), save() or start() that names other topics than this option does."""
        named = self.topics_of_path()
        if named and set(named) != set(topics):
            raise refused(
                "path",
                f"load(), save() or start() names topic {', '.join(map(repr, named))}, but option {option!r} is "
                f"{self.text(option)!r}. Name topics in one of the two places",
            )

    def url(self) -> str:
        """The broker's address, or several of brokers that share their stores; of others, each has topics of its
        own."""
        url = self.required("url", "http://127.0.0.1:7440")
        # Here, and not first where a task opens a connection.
        return ",".join(addresses_of(url, "option 'url'"))

    def credentials(self) -> Credentials:
        """What the options name, or else the environment of whichever process reads them. It travels to the executors
        without a token: they look for it where it was found here."""
        named = {option: self.text(option) or None for option in CREDENTIALS}
        try:
            found = find_credentials(
                token_file=named["tokenFile"], ca=named["caFile"], cert=named["certFile"], key=named["keyFile"]
            )
        except InvalidRequest as wrong:
            raise InvalidRequest(f"options {', '.join(CREDENTIALS)}: {wrong.detail}", field=wrong.field) from None
        if token := found.token():
            refuse_shown(token)
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self.text(name)
        if not found:
            return default
        if found.lower() not in _TRUTH:
            raise refused(name, f"{found!r} is neither 'true' nor 'false'")
        return _TRUTH[found.lower()]

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number, or None where the option was not given."""
        found = self.text(name)
        if not found:
            return None
        if not found.isascii() or not found.isdigit() or len(found) > 18 or int(found) < least:
            raise refused(name, f"{found!r} is not a whole number of at least {least}, with at most 18 digits")
        return int(found)

    def seconds(self, name: str, default: str) -> float:
        """A duration such as 500ms, 30s or 15m; a bare number counts seconds."""
        try:
            return milliseconds(self.text(name) or default) / 1000
        except ValueError as error:
            raise refused(name, str(error)) from error

    def word(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        found = self.text(name, default).lower()
        if found not in allowed:
            raise refused(name, f"{found!r} is not one of {', '.join(map(repr, allowed))}")
        return found


def credential_options(credentials: Credentials) -> dict[str, str]:
    """The options by which a job hands on what it was given. What is in the environment is found there."""
    if not credentials.travels:
        raise InvalidRequest(
            "credentials: a token that is given in Python stays in this process, and Spark's executors would ask "
            f"without one. Put it into a file (token_file=), or set {TOKEN_FILE} in the environment of the driver and "
            f"of the executors (spark.executorEnv.{TOKEN_FILE})",
            field="credentials",
        )
    files = credentials.token_file, credentials.ca, credentials.cert, credentials.key
    return {option: file for option, file in zip(CREDENTIALS, files, strict=True) if file}


def _shown_token() -> InvalidRequest:
    """Spark keeps the options of SQL statements in plans, and shows them in its UI and in event logs. That it hides
    this one there is a setting (`spark.redaction.regex`), which may be another where it runs."""
    return refused(
        "token",
        "a token is no option: Spark has options in its plans and event logs. Put it into a file for option "
        f"'tokenFile', or set {TOKEN_FILE} in the environment of the driver and of the executors "
        f"(spark.executorEnv.{TOKEN_FILE}), or on Kubernetes spark.kubernetes.executor.secretKeyRef.{TOKEN}",
    )


def refused(name: str, why: str) -> InvalidRequest:
    """The error for an option, in the form that all of them have."""
    return InvalidRequest(f"option {name!r}: {why}", field=name)
