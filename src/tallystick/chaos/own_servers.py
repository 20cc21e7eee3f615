"""Servers that live as long as a run: in a directory of their own, on a port of this machine, without a password."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.local import LocalService

GREETING_SECONDS = 1.0


class OwnServer(LocalService):
    """Its programs have to be installed. Databases refuse to run as root, so root hands them to somebody who may do
    less."""

    engine: ClassVar[str]
    title: ClassVar[str]
    users: ClassVar[tuple[str, ...]]  # whom root hands it to: the first that there is
    needs: ClassVar[tuple[str, ...]]  # programs
    host = "127.0.0.1"

    def __init__(self, log: Path) -> None:
        self.check()
        self._user = _user(self.users)
        self._directory = Path(tempfile.mkdtemp(prefix=f"tallystick-chaos-{self.engine}-"))
        super().__init__(self.engine, self._as_user(self._serving(self._directory)), log)
        self.process_group = 0

    @abstractmethod
    def _serving(self, directory: Path) -> Sequence[str | Path]:
        """The command that runs it; `{port}` is where it listens."""

    @abstractmethod
    def _founding(self, directory: Path) -> Sequence[str | Path]:
        """The command that makes what it runs on; none if nothing needs to be made."""

    @classmethod
    def check(cls) -> None:
        """Refuse if it is not installed."""
        if not all(map(program, cls.needs)):
            raise InvalidRequest(
                f"--store: {cls.title} is not installed here ({', '.join(cls.needs)}); name a server, "
                f"{cls.engine}://user@host/database",
                field="--store",
            )

    @property
    def services(self) -> Sequence[LocalService]:
        return [self]

    @abstractmethod
    def url_at(self, port: int) -> str: ...

    def start(self) -> None:
        founding = self._founding(self._directory)
        if self._user:
            for place in (self._directory, *self._directory.iterdir()):
                shutil.chown(place, self._user)
        if founding:
            done = subprocess.run(self._as_user(founding), capture_output=True, text=True, cwd="/")
            if done.returncode:
                raise TallystickError(f"{self.title} could not be set up:\n{done.stdout}{done.stderr}")
        super().start()

    def kill(self) -> None:
        """With all its processes."""
        if self.process is not None and self.running:
            os.killpg(self.pid, signal.SIGKILL)
        super().kill()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _as_user(self, command: Sequence[str | Path]) -> list[str]:
        """Whoever changes the user is no longer ended with its parent, unless that is asked for anew."""
        words = [str(word) for word in command]
        if not self._user:
            return words
        group = pwd.getpwnam(self._user).pw_gid
        drop = [f"--reuid={self._user}", f"--regid={group}", "--clear-groups", "--pdeathsig", "KILL"]
        return ["setpriv", *drop, *words]


class OwnPostgresql(OwnServer):
    engine, title, users, needs = "postgresql", "PostgreSQL", ("postgres",), ("initdb", "postgres")
    _SMALL: ClassVar = {"shared_buffers": "32MB", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}

    def _founding(self, directory: Path) -> Sequence[str | Path]:
        return [program("initdb"), "-D", directory / "data", "-U", "tallystick", "-A", "trust", "--no-sync"]

    def _serving(self, directory: Path) -> Sequence[str | Path]:
        options = [part for name, value in self._SMALL.items() for part in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", directory / "data", "-p", "{port}", *options]

    def url_at(self, port: int) -> str:
        return f"postgresql://tallystick@127.0.0.1:{port}/postgres"


class OwnMariadb(OwnServer):
    engine, title, users, needs = "mysql", "MariaDB", ("mysql",), ("mariadb-install-db", "mariadbd")
    _SMALL: ClassVar = {
        "innodb-buffer-pool-size": "32M",
        "innodb-log-file-size": "16M",
        "max-allowed-packet": "64M",
        "skip-name-resolve": "1",
        "bind-address": "127.0.0.1",
    }
    _FIRST = (
        "create database if not exists chaos;\n"
        "create user if not exists tallystick@'127.0.0.1';\n"
        "grant all on chaos.* to tallystick@'127.0.0.1';\n"
    )

    def _founding(self, directory: Path) -> Sequence[str | Path]:
        # A starting server removes every temporary table in its tmpdir: in a shared one, also those of others.
        (directory / "tmp").mkdir()
        (directory / "first.sql").write_text(self._FIRST)
        where = [f"--datadir={directory / 'data'}", f"--tmpdir={directory / 'tmp'}"]
        plain = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        return [program("mariadb-install-db"), "--no-defaults", *where, *plain]

    def _serving(self, directory: Path) -> Sequence[str | Path]:
        where = [f"--datadir={directory / 'data'}", f"--tmpdir={directory / 'tmp'}", f"--socket={directory / 'socket'}"]
        options = [f"--{name}={value}" for name, value in self._SMALL.items()]
        first = f"--init-file={directory / 'first.sql'}"
        return [program("mariadbd"), "--no-defaults", *where, "--port={port}", first, *options]

    def _ready(self) -> bool:
        """It listens before it can be talked to, and speaks first."""
        try:
            with socket.create_connection((self.host, self.port), GREETING_SECONDS) as probe:
                return bool(probe.recv(1))
        except OSError:
            return False

    def url_at(self, port: int) -> str:
        return f"mysql://tallystick@127.0.0.1:{port}/chaos"


class OwnRedis(OwnServer):
    engine, title, users, needs = "redis", "Redis", ("redis",), ("redis-server",)
    _DURABLE: ClassVar = {"appendonly": "yes", "appendfsync": "always", "save": ""}

    def _founding(self, directory: Path) -> Sequence[str | Path]:
        return []

    def _serving(self, directory: Path) -> Sequence[str | Path]:
        options = [part for name, value in self._DURABLE.items() for part in (f"--{name}", value)]
        return [program("redis-server"), "--bind", self.host, "--port", "{port}", "--dir", directory, *options]

    def url_at(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"


OWN: dict[str, type[OwnServer]] = {kind.engine: kind for kind in (OwnPostgresql, OwnMariadb, OwnRedis)}
"""What `--store` may name without an address."""


def program(name: str) -> str:
    """Where it is; empty if it is not there. Debian keeps PostgreSQL's out of PATH, one directory for each version, and
    other servers out of that of users."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    if versions:
        return str(versions[-1])
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin") or ""


def _user(preferred: tuple[str, ...]) -> str:
    """Whom root hands the server to; empty for everybody else, who runs it himself."""
    if os.getuid():
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in preferred if name in names), "nobody")
