"""Real PostgreSQL, MariaDB and Redis servers for tests: `with postgres_server() as server: server.connect()`.

Each lives in a temporary directory, listens on a free loopback port, and is stopped and removed at the end.
The databases refuse to run as root, so root hands them to an unprivileged user. Also usable from plain scripts.
PostgreSQL can also be reached through a PgBouncer.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import pymysql
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tallystick.local import free_port

USER = "tally"
PASSWORD = "stick:/@ %"  # characters that a badly built connection string would stumble over
DATABASE = "service"

_START_SECONDS = 120.0
_STOP_SECONDS = 90.0


@dataclass
class Server:
    """A running server and how to reach it."""

    engine: str
    host: str
    port: int
    directory: Path
    process: subprocess.Popen[bytes]
    driver: Callable[..., Any]
    user: str = USER
    password: str = PASSWORD
    databases: int = field(default=0, repr=False)
    launch: Callable[[], subprocess.Popen[bytes]] | None = field(default=None, repr=False)

    def kill(self) -> None:
        """kill -9 of all its processes, and wait until it is gone."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_STOP_SECONDS)

    def start(self) -> None:
        """Once more, on what it had written."""
        assert self.launch is not None
        self.process = self.launch()
        _wait_until_ready(self, DATABASE)

    @property
    def database(self) -> str:
        return DATABASE

    def parameters(self, database: str = DATABASE) -> dict[str, Any]:
        """Keyword arguments of the driver's connect()."""
        name = "dbname" if self.engine == "postgresql" else "database"
        credentials = {"user": self.user, "password": self.password, name: database}
        return {"host": self.host, "port": self.port, **credentials}

    def asyncpg_parameters(self, database: str = DATABASE) -> dict[str, Any]:
        """Keyword arguments of asyncpg.connect()."""
        credentials = {"user": self.user, "password": self.password, "database": database}
        return {"host": self.host, "port": self.port, **credentials}

    def connect(self, database: str = DATABASE, **options: Any) -> Any:
        """A new connection of psycopg or PyMySQL."""
        return self.driver(**{**self.parameters(database), **options})

    def execute(self, sql: str, database: str = DATABASE) -> list[Any]:
        """Run one statement on a connection of its own, as an administrator would."""
        with contextlib.closing(self.connect(database, autocommit=True)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def new_database(self) -> str:
        """Create an empty database and return its name."""
        self.databases += 1
        name = f"service_{self.databases}"
        self.execute(f"create database {name}")
        return name

    def url(self, driver: str, database: str = DATABASE) -> Any:
        """SQLAlchemy's URL for this server, `driver` being for example postgresql+psycopg."""
        from sqlalchemy import URL

        return URL.create(driver, self.user, self.password, self.host, self.port, database)


@dataclass
class RedisServer:
    """A running Redis, which can be killed and started again on what it had written."""

    host: str
    port: int
    directory: Path
    _user: str = field(repr=False)
    _command: list[Any] = field(repr=False)
    _runs: contextlib.ExitStack = field(repr=False)
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def connect(self, **options: Any) -> Redis:
        """A new client of redis-py; close it."""
        return Redis(self.host, self.port, **options)

    def start(self) -> None:
        self.process = self._runs.enter_context(_running(self._user, self._command, self.directory, signal.SIGTERM))
        with contextlib.closing(self.connect()) as client:
            _until_ready("redis", self.process, self.directory, client.ping, RedisConnectionError)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(_STOP_SECONDS)


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[Server]:
    """A PostgreSQL server of its own; `settings` are its configuration parameters."""
    with _directory("postgres") as (directory, user):
        data = directory / "data"
        secret = directory / "password"
        secret.write_text(PASSWORD)
        shutil.chown(secret, user)
        program = _postgres_programs()
        account = ["-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}"]
        _run(user, [program / "initdb", "-D", data, *account, "-E", "UTF8", "--locale=C", "--no-sync"])
        port = free_port()
        small = {"shared_buffers": "16MB", "max_connections": "100", "logging_collector": "off", **settings}
        options = [part for name, value in small.items() for part in ("-c", f"{name}={value}")]
        command = [program / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", directory]
        with contextlib.ExitStack() as runs:

            def launch() -> subprocess.Popen[bytes]:
                return runs.enter_context(_running(user, [*command, *options], directory, signal.SIGQUIT))

            server = Server("postgresql", "127.0.0.1", port, directory, launch(), psycopg.connect, launch=launch)
            _wait_until_ready(server, "postgres")
            server.execute(f"create database {DATABASE}", "postgres")
            yield server


@contextlib.contextmanager
def postgres_tls_server() -> Iterator[tuple[Server, Path]]:
    """One that is reached as `localhost` with TLS, and the certificate that it shows."""
    with _directory("postgres") as (directory, user):
        from certificates import self_signed  # late: the benchmarks use the servers without the tests' path

        certificate = self_signed(directory / "server.pem", "localhost")
        certificate.chmod(0o600)
        shutil.chown(certificate, user)
        with postgres_server(ssl="on", ssl_cert_file=str(certificate), ssl_key_file=str(certificate)) as server:
            yield server, certificate


@contextlib.contextmanager
def postgres_standby(primary: Server, **settings: str) -> Iterator[Server]:
    """A read-only copy of a PostgreSQL server, which follows it until it is promoted (`select pg_promote()`)."""
    with _directory("postgres") as (directory, user):
        data, program, port = directory / "data", _postgres_programs(), free_port()
        source = psycopg.conninfo.make_conninfo(
            host=primary.host, port=primary.port, user=primary.user, password=primary.password
        )
        _run(user, [program / "pg_basebackup", "-D", data, "-d", source, "-R", "-c", "fast", "--no-sync"])
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [program / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", directory]
        with _running(user, [*command, *options], directory, signal.SIGQUIT) as process:
            server = Server("postgresql", "127.0.0.1", port, directory, process, psycopg.connect)
            _wait_until_ready(server, "postgres")
            yield server


@contextlib.contextmanager
def pgbouncer(behind: Server, pool_mode: str, **settings: str) -> Iterator[Server]:
    """A PgBouncer in front of a PostgreSQL server: the same databases at another port, over connections it shares."""
    with _directory("postgres") as (directory, user):
        port = free_port()
        (directory / "users").write_text(f'"{behind.user}" "{behind.password}"\n')
        chosen = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(directory / "users"),
            "pool_mode": pool_mode,
            **settings,
        }
        lines = [
            "[databases]",
            f"* = host={behind.host} port={behind.port}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in chosen.items()),
        ]
        (directory / "ini").write_text("\n".join(lines) + "\n")
        for file in ("users", "ini"):
            (directory / file).chmod(0o644)
        with _running(user, [_program("pgbouncer"), directory / "ini"], directory, signal.SIGTERM) as process:
            server = Server("postgresql", "127.0.0.1", port, directory, process, psycopg.connect)
            _wait_until_ready(server, "postgres")
            yield server


@contextlib.contextmanager
def mariadb_server(**settings: str) -> Iterator[Server]:
    """A MariaDB server of its own; `settings` are its system variables."""
    with _directory("mysql") as (directory, user):
        port = free_port()
        _install_mariadb(directory, user)
        command = _mariadb(directory, port, **settings)
        with contextlib.ExitStack() as runs:

            def launch() -> subprocess.Popen[bytes]:
                return runs.enter_context(_running(user, command, directory, signal.SIGKILL))

            server = Server("mysql", "127.0.0.1", port, directory, launch(), pymysql.connect, launch=launch)
            _wait_until_ready(server, DATABASE)
            yield server


def _install_mariadb(directory: Path, user: str) -> None:
    # A starting server removes every temporary table in its tmpdir: in a shared one, also those of the others.
    scratch = directory / "tmp"
    scratch.mkdir()
    if os.getuid() == 0:
        shutil.chown(scratch, user)
    install = [
        _program("mariadb-install-db"),
        "--no-defaults",
        f"--datadir={directory / 'data'}",
        f"--tmpdir={scratch}",
    ]
    _run(user, [*install, "--auth-root-authentication-method=normal", "--skip-test-db"])
    start = directory / "init.sql"
    start.write_text(
        f"create database if not exists {DATABASE};\n"
        f"create user if not exists {USER}@'127.0.0.1' identified by '{PASSWORD}';\n"
        f"grant all on *.* to {USER}@'127.0.0.1' with grant option;\n"
    )
    start.chmod(0o644)


def _mariadb(directory: Path, port: int, **settings: str) -> list[Any]:
    """The command that runs what was installed there."""
    small = {"innodb_buffer_pool_size": "32M", "innodb_log_file_size": "16M", "skip_name_resolve": "1"}
    chosen = {**small, "max_allowed_packet": "64M", **settings}
    options = [f"--{name}={value}" for name, value in chosen.items()]
    command = [_program("mariadbd"), "--no-defaults", f"--datadir={directory / 'data'}"]
    place = [f"--port={port}", f"--socket={directory / 'socket'}", f"--tmpdir={directory / 'tmp'}"]
    return [*command, f"--init-file={directory / 'init.sql'}", "--bind-address=127.0.0.1", *place, *options]


@contextlib.contextmanager
def redis_server(**settings: str) -> Iterator[RedisServer]:
    """A Redis of its own, which writes nothing to disk unless `settings` (appendonly="yes") say so."""
    with _directory("redis") as (directory, user), contextlib.ExitStack() as runs:
        port = free_port()
        small = {"save": "", "appendonly": "no", **settings}
        options = [part for name, value in small.items() for part in (f"--{name.replace('_', '-')}", value)]
        place = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--daemonize", "no"]
        command = [_program("redis-server"), *place, *options]
        server = RedisServer("127.0.0.1", port, directory, user, command, runs)
        server.start()
        yield server


# For tests, which make tables all the time and never cut the power under a database: what was committed is with the
# system before it is answered, and so outlives the server's end, but nobody waits for the disk. Some hundred databases
# would also keep PostgreSQL's cleaning busy, which goes from one to the next all the time.
_UNSYNCED = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
_UNSYNCED_INNODB = {"innodb_flush_log_at_trx_commit": "2", "innodb_flush_method": "nosync", "innodb_doublewrite": "0"}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with postgres_server(**_UNSYNCED) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with mariadb_server(**_UNSYNCED_INNODB) as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@contextlib.contextmanager
def _directory(preferred_user: str) -> Iterator[tuple[Path, str]]:
    """A temporary directory and the user it belongs to."""
    user = _unprivileged(preferred_user)
    directory = Path(tempfile.mkdtemp(prefix="tallystick-"))
    try:
        if os.getuid() == 0:
            shutil.chown(directory, user)
        yield directory, user
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unprivileged(preferred: str) -> str:
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return preferred if preferred in names else "nobody"


def _as_user(user: str, command: list[Any], *more: str) -> list[str]:
    switch = [f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]
    return [_program("setpriv"), *(switch if os.getuid() == 0 else []), *more, *map(str, command)]


def _run(user: str, command: list[Any]) -> None:
    done = subprocess.run(_as_user(user, command, "--no-new-privs"), capture_output=True, text=True, cwd="/")
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def _running(user: str, command: list[Any], directory: Path, stop: signal.Signals) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, which is gone at the end whatever happens, even if we are killed. `stop` ends it at once: its
    directory goes with it, so putting in order what some hundred tests left there would be time for nothing."""
    guarded = _as_user(user, command, "--pdeathsig", stop.name)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(guarded, stdout=log, stderr=log, cwd="/", start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: Server, database: str) -> None:
    errors = (psycopg.OperationalError, pymysql.err.OperationalError)
    _until_ready(server.engine, server.process, server.directory, lambda: server.execute("select 1", database), *errors)


def _until_ready(
    name: str,
    process: subprocess.Popen[bytes],
    directory: Path,
    ask: Callable[[], object],
    *not_yet: type[Exception],
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            ask()
            return
        except not_yet as error:
            ended = process.poll()
            if ended is None and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            log = (directory / "log").read_text(errors="replace")
            raise RuntimeError(f"{name} did not start (exit code {ended}):\n{log[-4000:]}") from error


def _postgres_programs() -> Path:
    """Debian keeps them out of PATH, one directory per version; elsewhere they are on it."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else Path(_program("initdb")).parent


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError(f"{name} is not installed; `make test` installs what the tests need")
    return found
