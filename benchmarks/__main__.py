"""`make bench`: the benchmarks of the package, with a real PostgreSQL server of their own; the engines of stores,
web services, the flash sale, the weight of the client and signatures, which need more than the package does."""

from __future__ import annotations

import sys

from psycopg.conninfo import make_conninfo
from tests.servers import postgres_server

from benchmarks import flash_sale
from benchmarks.command import main
from benchmarks.engines import engines
from benchmarks.light import light
from benchmarks.report import Figure
from benchmarks.run import Bench
from benchmarks.signing import signing
from benchmarks.snapshot import snapshot
from benchmarks.takeover import takeover
from benchmarks.web import web
from benchmarks.web.outage import outage

SECONDS, LEAST_SECONDS = 10.0, 1.0


def flash_sales(bench: Bench) -> None:
    """Orders a second of examples/flash_sale, Redis and users on the same machine, every change on the disk."""
    found = flash_sale.measure(max(LEAST_SECONDS, SECONDS * min(1.0, bench.scale)))
    for name, rate in found.items():
        bench.report.add(
            Figure(
                f"flash sale: {name}",
                rate,
                "orders/s",
                ratio=rate * bench.fdatasync,
                ratio_of="fdatasyncs/s",
            )
        )


if __name__ == "__main__":
    with postgres_server() as server:
        dsn = make_conninfo(**server.parameters())
        more = {
            "engines": engines,
            "web": web,
            "outage": outage,
            "flash-sale": flash_sales,
            "light": light,
            "signing": signing,
        }
        sys.exit(main(["--postgresql", dsn, *sys.argv[1:]], more, {"takeover": takeover, "snapshot": snapshot}))
