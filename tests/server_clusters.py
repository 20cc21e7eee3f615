"""Several real servers that hold the same data: PostgreSQL with a standby, a Galera cluster of MariaDB nodes, a Redis
Cluster with replicas."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
from redis import Redis
from redis.exceptions import ResponseError

import servers
from eventually import eventually
from servers import DATABASE, RedisServer, Server, postgres_server, postgres_standby, redis_server
from shared_stores import url_of
from tallystick.local import free_port

_GALERA_LIBRARIES = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib/libgalera_smm.so")
SLOTS = 16_384


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


class PostgresPair(NamedTuple):
    """A PostgreSQL server and a standby, without which it commits nothing."""

    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        """Of a store, with the places of both."""
        second = f"{self.standby.host}:{self.standby.port}"
        return url_of(self.primary, DATABASE).replace("/" + DATABASE, f",{second}/{DATABASE}")

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.execute("select pg_promote()", "postgres")


@contextlib.contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    with postgres_server() as primary, postgres_standby(primary) as standby:
        primary.execute("alter system set synchronous_standby_names = '*'", "postgres")
        primary.execute("select pg_reload_conf()", "postgres")
        eventually(lambda: primary.execute("select 1 from pg_stat_replication where sync_state = 'sync'", "postgres"))
        yield PostgresPair(primary, standby)


# --- Galera ----------------------------------------------------------------------------------------------------------

# How a node gets the state of the others: all begin as copies of one that was stopped, and what has happened since is
# sent to them by Galera itself. So there is nothing to copy, and the two only tell each other that they are done.
_STATE_TRANSFER = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    --role) role=$2 ;;
    --address) address=$2 ;;
    --datadir) data=$2 ;;
    --gtid) gtid=$2 ;;
    esac
    shift
done
if [ "$role" = joiner ]; then
    echo "ready $data/state"
    while [ ! -s "$data/state" ]; do sleep 0.05; done
    cat "$data/state"
else
    echo "$gtid" >"$address.new"
    mv "$address.new" "$address"
    echo "done $gtid"
fi
"""


@contextlib.contextmanager
def galera_cluster(count: int = 3) -> Iterator[list[Server]]:
    """MariaDB nodes with the same data, each of which takes writes."""
    with contextlib.ExitStack() as all_of_them:
        places = [all_of_them.enter_context(servers._directory("mysql")) for _ in range(count)]
        ports = [free_port() for _ in range(count)]
        peers = [free_port() for _ in range(count)]
        commands = [
            _galera_command(directory, port, peer, peers)
            for (directory, _), port, peer in zip(places, ports, peers, strict=True)
        ]
        _seed(places, commands[0], ports[0])
        nodes: list[Server] = []
        for (directory, user), port, command in zip(places, ports, commands, strict=True):
            first = ["--wsrep-new-cluster"] if not nodes else []
            run = servers._running(user, [*command, *first], directory, signal.SIGKILL)
            node = Server("mysql", "127.0.0.1", port, directory, all_of_them.enter_context(run), pymysql.connect)
            nodes.append(node)
            eventually(lambda node=node: _synced(node), "the node is one of them", ignoring=(pymysql.Error,))
        yield nodes


def _galera_command(directory: Path, port: int, peer: int, peers: list[int]) -> list[Any]:
    transfer = directory / "wsrep_sst_same"
    transfer.write_text(_STATE_TRANSFER)
    transfer.chmod(0o755)
    provider = {
        "base_port": peer,
        "gmcast.listen_addr": f"tcp://127.0.0.1:{peer}",
        "ist.recv_addr": f"127.0.0.1:{free_port()}",
        "gcache.size": "16M",
    }
    found = [library for library in _GALERA_LIBRARIES if Path(library).exists()]
    if not found:
        raise RuntimeError("Galera is not installed; `make test` installs what the tests need")
    command = servers._mariadb(
        directory,
        port,
        binlog_format="row",
        innodb_autoinc_lock_mode="2",
        wsrep_on="ON",
        wsrep_provider=found[0],
        wsrep_cluster_name="tallystick",
        wsrep_cluster_address="gcomm://" + ",".join(f"127.0.0.1:{each}" for each in peers),
        wsrep_node_address=f"127.0.0.1:{peer}",
        wsrep_sst_method="same",
        wsrep_provider_options=";".join(f"{name}={value}" for name, value in provider.items()),
    )
    return ["env", f"PATH={directory}:/usr/bin:/bin", *command]


def _seed(places: list[tuple[Path, str]], command: list[Any], port: int) -> None:
    """A first life of the first node, whose directory all of them begin with."""
    (directory, user), *others = places
    servers._install_mariadb(directory, user)
    with servers._running(user, [*command, "--wsrep-new-cluster"], directory, signal.SIGTERM) as process:
        seed = Server("mysql", "127.0.0.1", port, directory, process, pymysql.connect)
        servers._wait_until_ready(seed, DATABASE)
    for other, _ in others:
        servers._run(user, ["cp", "-a", directory / "data", directory / "tmp", directory / "init.sql", other])


def _synced(node: Server) -> bool:
    return node.execute("show status like 'wsrep_local_state_comment'") == [("wsrep_local_state_comment", "Synced")]


# --- Redis Cluster ---------------------------------------------------------------------------------------------------


class RedisCluster:
    """Masters, and of each one replica. Every node knows all others."""

    def __init__(self, masters: list[RedisServer], replicas: list[RedisServer]) -> None:
        self.masters, self.replicas = masters, replicas

    @property
    def url(self) -> str:
        """Of all of its nodes."""
        places = ",".join(f"{node.host}:{node.port}" for node in [*self.masters, *self.replicas])
        return f"redis://{places}/0"

    def holder_of(self, key: str) -> tuple[RedisServer, RedisServer]:
        """The master that has a key, and its replica."""
        with contextlib.closing(self.masters[0].connect()) as client:
            slot: int = client.execute_command("CLUSTER KEYSLOT", key)
        number = slot * len(self.masters) // SLOTS
        return self.masters[number], self.replicas[number]


@contextlib.contextmanager
def redis_cluster(masters: int = 3, **settings: str) -> Iterator[RedisCluster]:
    """`settings` are those of each node. A dead master is replaced after two seconds."""
    quick = {"cluster_node_timeout": "2000", "repl_diskless_sync_delay": "0"}
    chosen = {"cluster_enabled": "yes", **quick, **settings}
    with contextlib.ExitStack() as nodes:
        buses = [free_port() for _ in range(2 * masters)]
        running = [nodes.enter_context(redis_server(cluster_port=str(bus), **chosen)) for bus in buses]
        clients = [nodes.enter_context(contextlib.closing(node.connect())) for node in running]
        for epoch, client in enumerate(clients, 1):  # or they would sort that out later, in the middle of a test
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
        for client in clients[1:]:
            client.execute_command("CLUSTER MEET", running[0].host, running[0].port, buses[0])
        bounds = [-(-number * SLOTS // masters) for number in range(masters + 1)]
        for client, first, behind in zip(clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, behind - 1)
        for master, replica in zip(clients[:masters], clients[masters:], strict=True):
            eventually(lambda master=master, replica=replica: _follow(replica, master), "a replica follows its master")
        eventually(lambda: all(_works(client) for client in clients), "the cluster works")
        yield RedisCluster(running[:masters], running[masters:])


def _follow(replica: Redis, master: Redis) -> bool:
    info: Any = replica.info("replication")
    if info["role"] == "master":  # asked once: each time, it would begin anew
        with contextlib.suppress(ResponseError):  # it has not heard of the other yet
            replica.execute_command("CLUSTER REPLICATE", master.execute_command("CLUSTER MYID"))
    return bool(info.get("master_link_status") == "up")


def _works(client: Redis) -> bool:
    state = str(client.execute_command("CLUSTER INFO"))
    return "cluster_state:ok" in state or "'cluster_state': 'ok'" in state
