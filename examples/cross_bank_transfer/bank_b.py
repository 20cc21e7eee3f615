"""Bank B: takes money in. `POST /TransIn` is a branch of bank A's transaction, called by the broker.

    python bank_b.py --port 8082 --database b.db --notes notes.jsonl

The broker calls until it is answered with success; so a call may come twice. The branch barrier, a row in the
transaction of the credit, makes the second one do nothing.
"""

import argparse
import json
from contextlib import closing
from pathlib import Path

import uvicorn
from ledger import Bank, Notes, adjust, die, open_bank
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route

from tallystick.dtm import BranchBarrier, Failure, web


class BankB:
    def __init__(self, given: argparse.Namespace) -> None:
        self.database, self.careless = given.database, given.without_barrier
        self.orders = given.orders  # what is to go wrong next, for the walk: "fail" or "die", a line each
        self.notes = Notes(given.notes)

    def trans_in(self, barrier: BranchBarrier, amount: int) -> None:
        self.notes.add("broker->b", f"TransIn {amount}")
        order = self.next_order()
        if order == "fail":
            self.notes.add("b->broker", "FAILURE")
            raise Failure("not now")
        with closing(open_bank(self.database)) as conn:
            if order == "die":
                conn.after_commit = self.die
            credited = self.credit(conn, barrier, amount)
        self.notes.add("b", f"+{amount}, commit" if credited else "has it already")
        self.notes.add("b->broker", "SUCCESS")

    def credit(self, conn: Bank, barrier: BranchBarrier, amount: int) -> bool:
        """False if it was there already."""
        if self.careless:
            adjust(conn, amount)
            conn.commit()
            return True
        return barrier.call(conn, lambda conn: adjust(conn, amount)) is not None

    def next_order(self) -> str | None:
        lines = self.orders.read_text().split() if self.orders and self.orders.exists() else []
        if not lines:
            return None
        self.orders.write_text("\n".join(lines[1:]))
        return lines[0]

    def die(self) -> None:
        self.notes.add("b", "commit, then kill -9")
        die()


def application(bank: BankB) -> Starlette:
    @web.fastapi
    async def trans_in(request: Request) -> None:
        amount = int(json.loads(await request.body())["amount"])
        await run_in_threadpool(bank.trans_in, BranchBarrier.from_query(request.query_params), amount)

    return Starlette(routes=[Route("/TransIn", trans_in, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes money in.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file")
    parser.add_argument("--notes", type=Path, required=True, help="where it notes what happens")
    parser.add_argument("--orders", type=Path, help="what is to go wrong next")
    parser.add_argument("--without-barrier", action="store_true", help="break it: a call that comes twice counts twice")
    given = parser.parse_args()
    uvicorn.run(application(BankB(given)), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
