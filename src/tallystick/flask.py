"""Tallystick in a Flask application: a client for each application, check-back, `flask tallystick consume`.

    ts = Tallystick(database=open_shop)

    def create_app():
        app = Flask(__name__)
        app.config["TALLYSTICK_GROUP"] = "shop"
        ts.init_app(app)
        return app

    with ts.transaction(db.session) as tx: ...

It only wires what `tallystick.client` has.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from typing import Any, Unpack

import msgspec

from tallystick.barrier.adapters.recognition import own_opener
from tallystick.client import CallOptions, CheckBack, Client, Transaction, Verifier, handlers
from tallystick.client.base import forks
from tallystick.client.base.arguments import check_truths
from tallystick.client.base.settings import DEFAULT_URL, ClientOptions, OpenConnection
from tallystick.client.consumers.subscribing import LaterSubscriptions
from tallystick.client.consumers.subscription import Handler
from tallystick.client.transactions.block import PrepareOrder
from tallystick.client.transactions.modes import ModeName
from tallystick.core.durations import milliseconds
from tallystick.core.errors import TallystickError
from tallystick.credentials.tokens import hidden
from tallystick.extras import need

try:
    import click
    from flask import Flask, current_app
    from flask.cli import AppGroup
except ModuleNotFoundError:
    need("flask")
    raise

_NAME = "tallystick"

_commands = AppGroup(_NAME, help="Consumers of this application's messages, and clean-up of its database.")


class Tallystick(LaterSubscriptions):
    """The extension; one for any number of applications, each of which has a client of its own.

    `database` and the further options are those of `Client`. `database` is called, and handlers run, in the context of
    the application. With a `verifier` (or that of TALLYSTICK_SIGNING_KEYS_FILE) check-backs of nobody but a broker are
    answered. From its configuration:

    * TALLYSTICK_URL: the broker's address, or several; from the environment if the configuration has none.
    * TALLYSTICK_GROUP: the group of the application; likewise.
    * TALLYSTICK_CHECK_PATH: where check-backs are answered from `database`, if they are to come by URL.
    * TALLYSTICK_PUBLIC_URL: where the broker reaches the application; with it, transactions are checked at that path.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        database: OpenConnection | None = None,
        verifier: Verifier | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__()
        self._database = database
        self._verifier = verifier
        options["token"] = hidden(options.get("token"))
        check_truths(database, options)
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Wire an application: its configuration must be there. Nothing is opened before the first use."""
        for name, default in (("TALLYSTICK_URL", DEFAULT_URL), ("TALLYSTICK_GROUP", None)):
            app.config.setdefault(name, os.environ.get(name, default))
        app.config.setdefault("TALLYSTICK_CHECK_PATH", None)
        app.config.setdefault("TALLYSTICK_PUBLIC_URL", os.environ.get("TALLYSTICK_PUBLIC_URL"))
        wired = app.extensions[_NAME] = _Wired(self, app)
        wired.answer_checks()
        app.cli.add_command(_commands)

    @property
    def client(self) -> Client:
        """That of the current application, made at its first use."""
        return _current().client

    def transaction(
        self,
        connection: Any,
        *,
        mode: ModeName = "check-back",
        prepare: PrepareOrder = "late",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool | None = None,
        call_options: CallOptions | None = None,
    ) -> Transaction:
        """`Client.transaction` of the current application's client; `connection` may be a `db.session`."""
        return self.client.transaction(
            connection, mode=mode, prepare=prepare, check=check, gid=gid, wait=wait, call_options=call_options
        )


class _Wired:
    """What one application has of the extension."""

    def __init__(self, extension: Tallystick, app: Flask) -> None:
        self._extension, self._app = extension, app
        self._client: Client | None = None
        self._given = 0  # so many handlers the client has
        self._making = threading.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        self._making = threading.Lock()  # a thread of the parent's may have held it

    @property
    def client(self) -> Client:
        with self._making:
            if self._client is None:
                self._client = self._new_client()
            self._given = self._extension._hand_over(self._client, self._in_context, self._given)
            return self._client

    def _new_client(self) -> Client:
        config, options = self._app.config, self._extension._options.copy()
        path, address = config["TALLYSTICK_CHECK_PATH"], config["TALLYSTICK_PUBLIC_URL"]
        if path and address:
            check = options.get("check") or CheckBack()
            options["check"] = msgspec.structs.replace(check, url=f"{address.rstrip('/')}{path}")
        return Client(config["TALLYSTICK_URL"], group=config["TALLYSTICK_GROUP"], database=self.database, **options)

    @property
    def database(self) -> OpenConnection | None:
        database = self._extension._database
        return None if database is None else self._in_context(own_opener(database))

    def answer_checks(self) -> None:
        path, database = self._app.config["TALLYSTICK_CHECK_PATH"], self.database
        if not path:
            return
        if database is None:
            raise TallystickError("TALLYSTICK_CHECK_PATH: check-backs are answered from Tallystick(database=...)")
        options = self._extension._options
        table: dict[str, Any] = {"table": options["barrier_table"]} if "barrier_table" in options else {}
        # Before Flask's own routes: what guards those (logins, CSRF tokens) is not for the broker.
        app: Any = self._app
        app.wsgi_app = handlers.wsgi(database, app.wsgi_app, path, verifier=self._extension._verifier, **table)

    def consume(self) -> None:
        """Run the handlers until SIGTERM or SIGINT."""
        self.client.run()

    def clean(self, older_than: float) -> dict[str, int]:
        if self.database is None:
            raise click.UsageError("there is no database to clean: give the extension one, Tallystick(database=...)")
        connection = self.database()
        try:
            return self.client.clean(connection, older_than=older_than)
        finally:
            connection.close()

    def _in_context(self, function: Handler) -> Handler:
        """It runs on a thread of the client's, where no request has brought a context."""
        if inspect.iscoroutinefunction(function):
            return function  # which the client refuses, as it is

        @functools.wraps(function)
        def called(*args: Any) -> Any:
            with self._app.app_context():
                return function(*args)

        return called


def _current() -> _Wired:
    try:
        wired: _Wired = current_app.extensions[_NAME]
    except KeyError:
        raise TallystickError("this application has no Tallystick: call ts.init_app(app)") from None
    return wired


@_commands.command("consume")
def _consume() -> None:
    """Run the handlers of `ts.subscribe` until SIGTERM or Ctrl-C."""
    _current().consume()


@_commands.command("clean")
@click.option("--older-than", default="14d", show_default=True, help="Age of the rows to delete: 12h, 14d.")
def _clean(older_than: str) -> None:
    """Delete old barrier and inbox rows that no broker needs any more."""
    try:
        seconds = milliseconds(older_than) / 1000
    except ValueError as failure:
        raise click.BadParameter(str(failure), param_hint="--older-than") from failure
    for kind, count in _current().clean(seconds).items():
        click.echo(f"{kind}: {count}")
