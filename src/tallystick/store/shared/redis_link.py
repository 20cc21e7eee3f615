"""The way to a Redis, or to the nodes of a Redis Cluster that hold what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.exceptions import ConnectionError, MovedError, RedisError, TimeoutError
from redis.retry import Retry

from tallystick.core.errors import ConfigError
from tallystick.store.shared.attempts import Attempts
from tallystick.store.shared.health import AwaitedStatement, health_of
from tallystick.store.shared.server import SESSIONS_NAME, ServerAway
from tallystick.store.shared.time_limits import CONNECT_SECONDS, OUTAGE_SECONDS

# redis-py would try again by itself what may have been carried out.
_ONCE = Retry(NoBackoff(), 0)

_FULL = "OutOfMemory OOM"
# What Redis says, and what an operator should know of it.
_REASONS = {
    _FULL: "Redis is full, its maxmemory is used up: raise it, or trim topics",
    "ReadOnly READONLY": "this Redis is a replica, which takes no writes: the master's address is needed",
    "BusyLoading LOADING": "Redis is still loading what it holds",
    "MISCONF": "Redis cannot write to its disk, and takes no writes until it can",
    "NOREPLICAS": "Redis has fewer replicas than it needs to take writes (min-replicas-to-write)",
    "ClusterDown CLUSTERDOWN": "the Redis Cluster does not serve this store's slot",
    "BUSY": "Redis is held up by somebody's script",
}

NO_DATABASE = "DB index is out of range"
_OPTIONS = (
    *URL_QUERY_ARGUMENT_PARSERS,
    "wait_replicas",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
)

T = TypeVar("T")


class RedisLink:
    """Begins at the first of the given addresses that answers. A node of a cluster that does not hold a hash tag names
    the one that does; that is kept until something fails."""

    # `?socket_timeout=` in the URL overrides it. Redis carries out one command after the other, and none of ours takes
    # long: a statement that gets no answer is no reason to ask what became of it.
    answer_seconds = OUTAGE_SECONDS

    def __init__(self, url: str) -> None:
        self.trips = 0
        self._pools: dict[Redis, _Pool] = {}
        try:
            self._replicas, url = _wanted_replicas(url)
            self._urls = _each_host(url)
            self._homes = [self._client(one) for one in self._urls]
        except (TypeError, ValueError) as error:  # without its cause, which may show a part of the password
            raise ConfigError(
                "store: not a valid address of a Redis server, or one with an option that redis-py does not know"
                + _meant(error),
                field="store",
            ) from None
        self._home: Redis | None = None
        self._nodes: dict[tuple[str, int], Redis] = {}
        self._placed: dict[str, Redis] = {}  # by hash tag

    def _script(self, name: str) -> Script:
        """Sent by its name, and as a whole where Redis does not know it: then it was not run."""
        text = resources.files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
        return Script(self._homes[0], text)

    def _ask_for(self, tag: str, question: Callable[[Redis], T]) -> T:
        """Of the node that has the keys with this hash tag."""
        self.trips += 1
        with self._answering():
            try:
                return self._asked(self._at(tag), question)
            except MovedError as moved:  # a refusal: this node has done nothing
                return self._asked(self._moved(tag, moved), question)

    def _asked(self, client: Redis, question: Callable[[Redis], T]) -> T:
        try:
            return question(client)
        except (ConnectionError, TimeoutError, OSError):
            self._pools[client].health.suspect()
            raise

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            self._lose_the_way()
            raise ServerAway(_reason(error), is_full(error)) from error
        except ServerAway:
            self._lose_the_way()
            raise

    def _client(self, url: str, host: str = "", port: int = 0) -> Redis:
        """At the host and port of the URL, or at others."""
        client = Redis.from_url(
            url,
            **_names_are_checked(url),
            protocol=2,
            retry=_ONCE,
            socket_timeout=self.answer_seconds,
            socket_connect_timeout=CONNECT_SECONDS,
            client_name=SESSIONS_NAME,
        )
        pool = client.connection_pool
        if host:
            pool.connection_kwargs.update(host=host, port=port)
        self._pools[client] = kept = _Pool(client)
        pool.connection_class = _with_limited_attempts(pool.connection_class, kept.health.attempts)
        pool.connection_class(**pool.connection_kwargs)  # connects to nobody, but knows which options there are
        return client

    # --- the way -----------------------------------------------------------------------------------------------

    def _at(self, tag: str) -> Redis:
        return self._placed.get(tag) or self._found_home()

    def _found_home(self) -> Redis:
        if self._home is None:
            self._home = self._homes[0] if len(self._homes) == 1 else self._first_that_answers()
        return self._home

    def _first_that_answers(self) -> Redis:
        refusals = []
        for home in list(self._homes):
            try:
                self._asked(home, Redis.ping)
                return home
            except (RedisError, OSError, ServerAway) as error:
                refusals.append(_reason(error))
        raise ServerAway("; ".join(refusals))

    def _moved(self, tag: str, moved: MovedError) -> Redis:
        place = moved.host, moved.port
        if place not in self._nodes:
            self._nodes[place] = self._client(self._urls[0], *place)
        self._placed[tag] = self._nodes[place]
        return self._nodes[place]

    def _lose_the_way(self) -> None:
        """The next question begins at the next address: this one may be a replica, or cut off from its cluster."""
        self._pass_on()
        self._placed.clear()

    def _left_alone(self, tag: str, node: Redis) -> None:
        """The same for one hash tag: this node did not answer for it."""
        self._placed.pop(tag, None)
        self._pools[node].health.suspect()
        if node is self._home:
            self._pass_on()

    def _pass_on(self) -> None:
        self._homes = [*self._homes[1:], self._homes[0]]
        self._home = None

    def cut(self) -> None:
        """And back to the addresses that were given: in a cluster, those know who has taken over."""
        self._home = None
        self._placed.clear()
        for pool in list(self._pools.values()):
            pool.drop_idle()

    def close(self) -> None:
        self.cut()


class _Pool:
    """The connections of one client to one node."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        given = self._pool.connection_kwargs
        place = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
        self.health = health_of(f"redis {place}")  # a Redis Cluster has many, and one that is away slows down no other
        self.health.add(self)

    def drop_idle(self) -> None:
        self._pool.disconnect(inuse_connections=False)

    def silent(self, seconds: float) -> list[AwaitedStatement]:
        """The driver gives up each by itself."""
        return []

    def working(self, sessions: Sequence[str]) -> dict[str, bool]:
        return {}


def _with_limited_attempts(kind: type[Any], attempts: Attempts) -> type[Any]:
    """This kind of redis-py's connections, which connects when the attempts to its node allow it."""

    class LimitedConnection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            if self._sock is None:
                with attempts.one():
                    super().connect()

    return LimitedConnection


def store_tag(store: int) -> str:
    """What all keys of a store begin with."""
    return f"{{ts:{store}}}"


def _each_host(url: str) -> list[str]:
    """`redis://user:word@one:6379,other:6379/0` as an address for each host."""
    parts = urlsplit(url)
    who, at, hosts = parts.netloc.rpartition("@")
    return [parts._replace(netloc=f"{who}{at}{host}").geturl() for host in hosts.split(",")]


def _wanted_replicas(url: str) -> tuple[int, str]:
    """How many replicas must have a unit before it is told (`?wait_replicas=1`), and the URL without that."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    wanted = int(options.pop("wait_replicas", "0"))
    return wanted, parts._replace(query=urlencode(options)).geturl()


def _meant(error: Exception) -> str:
    """The option that somebody has almost written. What was written is not shown: it may be a part of the password."""
    _, _, written = str(error).partition("unexpected keyword argument ")
    meant = get_close_matches(written.strip("'"), _OPTIONS, 1, 0.8)
    return f": is {meant[0]} meant?" if meant else ""


def _names_are_checked(url: str) -> dict[str, bool]:
    """Older versions of redis-py believe a certificate for any name. What the URL says wins."""
    parts = urlsplit(url)
    unchecked = dict(parse_qsl(parts.query)).get("ssl_cert_reqs", "").lower() == "none"
    return {"ssl_check_hostname": True} if parts.scheme == "rediss" and not unchecked else {}


def is_full(error: Exception) -> bool:
    """Whether Redis refused a command because its memory is full."""
    return _is(error, _FULL)


def _is(error: Exception, words: str) -> bool:
    """Whether the error, or its class, has one of these words: redis-py takes some out of the text."""
    said = f"{type(error).__name__} {error}"
    return any(word in said for word in words.split())


def _reason(error: Exception) -> str:
    if NO_DATABASE in str(error):
        return f"{error}: the address ends with the number of a database that this Redis does not have, /0 is the first"
    known = [reason for words, reason in _REASONS.items() if _is(error, words)]
    return f"{known[0]} ({error})" if known else str(error)
