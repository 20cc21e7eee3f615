"""A Redis server of an example's own."""

from __future__ import annotations

from pathlib import Path

from tallystick.local import LocalService


class LocalRedis(LocalService):
    """A Redis server (`redis-server` on PATH) that has every change on the disk before it says so: what it has
    acknowledged outlasts `kill()`."""

    def __init__(self, directory: Path, **settings: str) -> None:
        given = {"dir": str(directory), "appendonly": "yes", "appendfsync": "always", "save": "", **settings}
        options = [word for name, value in given.items() for word in (f"--{name}", value)]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", "{port}", *options]
        super().__init__("redis", command, directory / "redis.log")
