"""Bank A: takes money out, and has bank B put it in.

    python bank_a.py serve --port 8081 --database a.db --notes notes.jsonl                  # answers check-backs
    python bank_a.py transfer 30 --broker http://127.0.0.1:7440 --to http://127.0.0.1:8082/TransIn ...

`transfer` does it in one of three ways: `--way msg` in dtm's manner, `--way native` with a transaction block of
Tallystick, `--way http` with nothing but HTTP and SQL (plain.py). With `--die` it kills itself at a moment.
"""

import argparse
import sys
from contextlib import closing
from pathlib import Path

import plain
import uvicorn
from ledger import Bank, Notes, adjust, die, open_bank
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

import tallystick
from tallystick.dtm import BranchBarrier, Failure, Msg, web


class BankA:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.notes = Notes(given.notes)

    # --- the transfer ------------------------------------------------------------------------------------------

    def transfer(self) -> None:
        with closing(open_bank(self.given.database)) as conn:
            conn.after_commit = self.committed
            way = {"msg": self.by_msg, "native": self.by_block, "http": self.by_http}[self.given.way]
            try:
                way(conn)
            except Failure as failure:
                self.notes.add("a", "rollback")
                self.notes.add("a->broker", "abort")
                sys.exit(f"refused: {failure}")

    def by_msg(self, conn: Bank) -> None:
        """As the two-phase message is written with dtm."""
        with self.client() as ts:
            msg = Msg(ts).add(self.given.to, {"amount": self.given.amount})
            if self.given.wait:
                msg.set_wait_result()
            msg.do_and_submit_db(self.given.check, conn, self.trans_out)

    def by_block(self, conn: Bank) -> None:
        """The same with less: the call is named where the change is made, and nothing needs a URL for check-backs."""
        check = tallystick.CheckBack(url=self.given.check)
        with self.client() as ts, ts.transaction(conn, check=check, prepare="early") as tx:
            tx.call(self.given.to, {"amount": self.given.amount})
            tx.prepare()
            self.trans_out(conn)
            if self.given.wait:
                tx.commit(wait=True)

    def by_http(self, conn: Bank) -> None:
        """The protocol itself. `timeout_to_fail` is dtm's name for the seconds until a check-back."""
        dtm = plain.Dtm(self.given.broker)
        options = {"wait_result": self.given.wait, "timeout_to_fail": 1}
        trans = dtm.trans(self.given.to, {"amount": self.given.amount}, self.given.check, **options)
        plain.do_and_submit(dtm, trans, conn, self.trans_out)

    def client(self) -> tallystick.Client:
        return tallystick.Client(self.given.broker, group="bank-a", timeout=5)

    def trans_out(self, conn: Bank) -> None:
        """Between prepare and submit: the part that may fail."""
        self.notes.add("a->broker", "prepare")
        adjust(conn, -self.given.amount)
        self.notes.add("a", f"-{self.given.amount}")
        if self.given.die == "before-commit":
            self.notes.add("a", "kill -9")
            die()

    def committed(self) -> None:
        """Called right after the local commit; what comes next is submit."""
        self.notes.add("a", "commit")
        if self.given.die == "after-commit":
            self.notes.add("a", "kill -9")
            die()
        self.notes.add("a->broker", "submit")

    # --- the check-back ----------------------------------------------------------------------------------------

    def query_prepared(self, barrier: BranchBarrier) -> None:
        self.notes.add("broker->a", "QueryPrepared")
        if not self.given.always_yes:
            with closing(open_bank(self.given.database)) as conn:
                try:
                    barrier.query_prepared(conn)
                except Failure:
                    self.notes.add("a->broker", "FAILURE")
                    raise
        self.notes.add("a->broker", "SUCCESS")


def application(bank: BankA) -> Starlette:
    @web.fastapi
    def query_prepared(request: Request) -> None:
        bank.query_prepared(BranchBarrier.from_query(request.query_params))

    return Starlette(routes=[Route("/QueryPrepared", query_prepared)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes money out.")
    parser.add_argument("command", choices=("serve", "transfer"))
    parser.add_argument("amount", type=int, nargs="?", default=0)
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file")
    parser.add_argument("--notes", type=Path, required=True, help="where it notes what happens")
    parser.add_argument("--port", type=int, help="of `serve`")
    parser.add_argument("--broker", help="its URL")
    parser.add_argument("--to", help="URL of bank B's TransIn")
    parser.add_argument("--check", help="URL of this bank's QueryPrepared")
    parser.add_argument("--way", choices=("msg", "native", "http"), default="msg")
    parser.add_argument("--wait", action="store_true", help="until bank B has it")
    parser.add_argument("--die", choices=("before-commit", "after-commit"))
    parser.add_argument("--always-yes", action="store_true", help="break it: a check-back without a look")
    bank = BankA(parser.parse_args())
    if bank.given.command == "transfer":
        bank.transfer()
    else:
        uvicorn.run(application(bank), host="127.0.0.1", port=bank.given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
