"""The engine that the brokers of a cluster share: one that is there already, or one that lives as long as the run."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.local import LocalService
from tallystick.store.shared.opening import server_at
from tallystick.store.shared.server import ServerAway

PORTS = {"postgresql": 5432, "mysql": 3306, "redis": 6379}
OWN = "postgresql"  # what is started if nobody names a server
DATABASE = "postgres"
_SMALL = {"shared_buffers": "32MB", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}


class ChaosEngine(Protocol):
    host: str
    port: int

    @property
    def services(self) -> Sequence[LocalService]:
        """Those that are the run's own, to be killed and started again."""

    def url_at(self, port: int) -> str:
        """Its address for one who reaches it over a port of this machine."""

    def start(self) -> None: ...
    def end(self) -> None: ...


class GivenEngine:
    """A server that somebody else runs, with a database in which there is no cluster yet."""

    services: Sequence[LocalService] = ()

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # several hosts, for example
            port = -1
        if parts.scheme not in PORTS or not parts.hostname or port == -1:
            raise InvalidRequest(
                f"--store: {OWN}, or the address of one server, such as {OWN}://user@host:5432/database",
                field="--store",
            )
        self._parts = parts
        self._url = url
        self.host, self.port = parts.hostname, port or PORTS[parts.scheme]

    def url_at(self, port: int) -> str:
        login, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()

    def start(self) -> None:
        """What is done to brokers here is not to be done to those of a cluster that somebody uses."""
        server = server_at(self._url, 0)
        try:
            fence = server.fence()
        except ServerAway:  # no tables, or no server: the brokers will tell
            fence = None
        finally:
            server.close()
        if fence is not None:
            raise InvalidRequest("--store: there is a cluster already; name an empty database", field="--store")

    def end(self) -> None:
        """What is in the database stays."""


class OwnPostgresql(LocalService):
    """A PostgreSQL server in a directory of its own, gone with the run. It refuses to run as root, so root hands it to
    somebody who may do less."""

    host = "127.0.0.1"

    def __init__(self, log: Path) -> None:
        programs = _programs()
        self._user = _user()
        self._directory = Path(tempfile.mkdtemp(prefix="tallystick-chaos-postgresql-"))
        data = self._directory / "data"
        self._found = self._as_user([programs / "initdb", "-D", data, "-U", OWN, "-A", "trust", "--no-sync"])
        options = [part for name, value in _SMALL.items() for part in ("-c", f"{name}={value}")]
        super().__init__(OWN, self._as_user([programs / "postgres", "-D", data, "-p", "{port}", *options]), log)
        self.process_group = 0

    @property
    def services(self) -> Sequence[LocalService]:
        return [self]

    def url_at(self, port: int) -> str:
        return f"postgresql://{OWN}@127.0.0.1:{port}/{DATABASE}"

    def start(self) -> None:
        if self._user:
            shutil.chown(self._directory, self._user)
        done = subprocess.run(self._found, capture_output=True, text=True, cwd="/")
        if done.returncode:
            raise TallystickError(f"PostgreSQL could not be set up:\n{done.stdout}{done.stderr}")
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


def _user() -> str:
    """Whom root hands the server to; empty for everybody else, who runs it himself."""
    if os.getuid():
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _programs() -> Path:
    """Debian keeps them out of PATH, one directory for each version; elsewhere they are on it."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("initdb")
    if not versions and not found:
        raise InvalidRequest(
            f"--store: PostgreSQL is not installed here; name a server, {OWN}://user@host/database", field="--store"
        )
    return versions[-1].parent if versions else Path(str(found)).parent


def check_store(store: str) -> None:
    """Refuse what `engine_at` could make nothing of."""
    if store == OWN:
        _programs()
    else:
        GivenEngine(store)


def engine_at(store: str, log: Path) -> ChaosEngine:
    return OwnPostgresql(log) if store == OWN else GivenEngine(store)
