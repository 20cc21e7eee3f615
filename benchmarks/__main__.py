"""`make bench`: the benchmarks of the package, with a real PostgreSQL server of their own."""

from __future__ import annotations

import sys

from psycopg.conninfo import make_conninfo
from tests.servers import postgres_server

from tallystick.bench import main

if __name__ == "__main__":
    with postgres_server() as server:
        sys.exit(main(["--postgresql", make_conninfo(**server.parameters()), *sys.argv[1:]]))
