"""The scene of the dtmcli tests: a bank on a real MariaDB, its service and its senders in processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from brokers import BrokerProcess
from eventually import eventually, eventually_equal
from servers import Server
from tallystick.local import free_port

HERE = Path(__file__).parent
START = 10_000
FAST = {
    "check_timeout": "5s",
    "check_interval": "200ms",
    "check_interval_cap": "1s",
    "call_retry_first": "100ms",
    "call_retry_cap": "500ms",
    "call_probe": "100ms",
    "call_probe_cap": "300ms",
    "log_level": "warning",
}
# As dtm's own documentation has it.
BARRIER_TABLE = """
create table if not exists dtm_barrier.barrier (
  id bigint(22) primary key auto_increment,
  trans_type varchar(45) default '',
  gid varchar(128) default '',
  branch_id varchar(128) default '',
  op varchar(45) default '',
  barrier_id varchar(45) default '',
  reason varchar(45) default '' comment 'the branch type who insert this record',
  create_time datetime default now(),
  update_time datetime default now(),
  key (create_time),
  key (update_time),
  unique key (gid, branch_id, op, barrier_id)
) engine = innodb default charset = utf8mb4
"""


class Told(NamedTuple):
    """What the caller of dtmcli was told; `raised` is "" if nothing reached it, "killed" if its process died."""

    raised: str
    text: str = ""
    result: Any = None


class Bank:
    def __init__(self, broker: BrokerProcess, server: Server, directory: Path) -> None:
        self.broker, self.server, self.directory = broker, server, directory
        self.database = server.new_database()
        server.execute("create database if not exists dtm_barrier")
        server.execute(BARRIER_TABLE)
        server.execute("create table account (user_id int primary key, balance bigint not null)", self.database)
        server.execute(f"insert into account values (1, {START}), (2, {START})", self.database)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def dtm(self) -> str:
        return f"{self.broker.url}/api/dtmsvr"

    # --- the service -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        settings = {"port": self.port, "database": self.server.parameters(self.database)}
        with (self.directory / "service.log").open("ab") as log:
            command = [sys.executable, str(HERE / "dtmcli_service.py"), json.dumps(settings)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        eventually(self._listens)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "service.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.wait_for_its_death()

    def wait_for_its_death(self) -> None:
        assert self.process is not None
        self.process.wait(20)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process = None

    def plan(self, **plans: list[str]) -> None:
        """How the next requests go, path by path (without the slash)."""
        ask(self.port, "POST", "/plan", {f"/{path}": plan for path, plan in plans.items()})

    def seen(self, gid: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """The requests that the service got."""
        _, everything = ask(self.port, "GET", "/seen")
        chosen = [one for one in everything if gid is None or one["query"].get("gid") == gid]
        return [one for one in chosen if path is None or one["path"] == path]

    # --- the sender --------------------------------------------------------------------------------------------------

    def do(self, way: str, **rest: Any) -> Told:
        """One use of dtmcli in a process of its own."""
        parameters = self.server.parameters(self.database)
        asked = {"do": way, "dtm": self.dtm, "service": self.url, "database": parameters, **rest}
        command = [sys.executable, str(HERE / "dtmcli_producer.py"), json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        if done.returncode < 0:
            return Told("killed")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.rpartition("RESULT ")[2])
        return Told(told.get("raised", ""), told.get("text", ""), told.get("result"))

    # --- looking -----------------------------------------------------------------------------------------------------

    def balances(self) -> tuple[int, int]:
        """How much each user has more (or less) than at the start."""
        rows = self.server.execute("select balance from account order by user_id", self.database)
        return rows[0][0] - START, rows[1][0] - START

    def barriers(self, *gids: str) -> set[tuple[str, ...]]:
        """The rows of these transactions: gid, branch, op, barrier, reason."""
        names = ",".join(f"'{gid}'" for gid in gids)
        columns = "gid, branch_id, op, barrier_id, reason"
        return set(self.server.execute(f"select {columns} from dtm_barrier.barrier where gid in ({names})"))

    def query(self, gid: str) -> dict[str, Any]:
        status, content = ask(self.broker.port, "GET", f"/api/dtmsvr/query?gid={quote(gid, safe='')}")
        assert status == 200, content
        found: dict[str, Any] = content
        return found

    def status(self, gid: str) -> str | None:
        transaction = self.query(gid)["transaction"]
        return None if transaction is None else transaction["status"]

    def becomes(self, gid: str, status: str) -> None:
        eventually_equal(lambda: self.status(gid), status)


def ask(port: int, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@contextlib.contextmanager
def open_bank(broker: BrokerProcess, server: Server, directory: Path) -> Iterator[Bank]:
    bank = Bank(broker, server, directory)
    bank.start()
    try:
        yield bank
    finally:
        bank.stop()
