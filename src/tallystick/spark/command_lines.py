"""Tokens on command lines: every user of a machine can read the arguments of its processes.

PySpark passes what a session builder is given to the JVM as `--conf name=value`. So a token in
`spark.executorEnv.TALLYSTICK_TOKEN` is shown by `ps`, unless it comes from a properties file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from tallystick.core.errors import InvalidRequest
from tallystick.credentials.credentials import Credentials
from tallystick.credentials.tokens import TOKEN, TOKEN_FILE, SecretToken

_PROCESSES = Path("/proc")
_MOST_ANCESTORS = 64
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_CONF = ("--conf", "-c")
SAFE_PLACES = (
    f"Put the token into a file for option tokenFile (or {TOKEN_FILE}), or into a properties file "
    f"(spark-submit --properties-file) as spark.executorEnv.{TOKEN}"
)


def refuse_conf(names: Iterable[str]) -> None:
    """Refuse settings that would put a token on the command line of the JVM."""
    for name in names:
        # With secretKeyRef the setting has the name of a secret of Kubernetes, not the token.
        if name.endswith(f".{TOKEN}") and "secretKeyRef" not in name:
            raise InvalidRequest(
                f"{name}: this setting would show the token to every user of the machine, on the command line of "
                f"Spark's JVM. {SAFE_PLACES}",
                field="conf",
            )


def refuse_submit_arguments() -> None:
    """Refuse a token in PYSPARK_SUBMIT_ARGS: PySpark starts the JVM with these arguments."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, without them
        return
    try:
        words = shlex.split(os.environ.get(SUBMIT_ARGUMENTS, ""))
    except ValueError:  # PySpark refuses it
        return
    pairs = [after for before, after in pairwise(words) if before in _CONF]
    joined = [word.partition("=")[2] for word in words if word.startswith("--conf=")]
    refuse_conf(pair.partition("=")[0].strip() for pair in (*pairs, *joined))


def check_command_lines(credentials: Credentials) -> None:
    """For a job, on the driver: refuse a token that the driver's processes or the JVM show."""
    refuse_submit_arguments()
    if token := credentials.token():
        refuse_shown(token)


def refuse_shown(token: SecretToken) -> None:
    """Refuse a token that is on the command line of this process or of one above it. Linux only: elsewhere no process
    is read."""
    if number := _showing(token):
        raise InvalidRequest(
            f"{TOKEN}: the token is on the command line of process {number}, where every user of the machine can read "
            f"it (`ps`). Revoke this token. {SAFE_PLACES}, and not into the session builder or --conf",
            field="token",
        )


def _showing(token: SecretToken) -> int:
    """The process that shows it, or 0. No error passes through here: a traceback may show the variables."""
    text = token.reveal().encode()
    return next((number for number, arguments in _command_lines() if text in arguments), 0)


def _command_lines() -> Iterator[tuple[int, bytes]]:
    """Of this process and those above it, as far as they can be read."""
    number = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        try:
            yield number, (_PROCESSES / str(number) / "cmdline").read_bytes()
            # After the name, which is in brackets and may have any character in it: the state, then the parent.
            number = int((_PROCESSES / str(number) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if not number:
            return
