"""`make bench`: the benchmarks of the package, with a real PostgreSQL server of their own."""

from __future__ import annotations

import sys

from tallystick.bench import main
from tests.servers import postgres_server

if __name__ == "__main__":
    with postgres_server() as server:
        dsn = " ".join(f"{name}={value}" for name, value in server.parameters().items())
        sys.exit(main(["--postgresql", dsn, *sys.argv[1:]]))
