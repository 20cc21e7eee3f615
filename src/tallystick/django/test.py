"""For tests of a project: what was sent, found in a broker in memory.

class OrderTests(TallystickTestMixin, TestCase):
    def test_an_order_is_told(self):
        with self.commits():
            self.client.post("/orders/tea")
        self.broker.assert_sent("orders", {"item": "tea"})
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.test import TestCase
from django.test.utils import override_settings

from tallystick.core.errors import InvalidRequest
from tallystick.django import conf, handlers
from tallystick.django.service import ts
from tallystick.testing import MemoryBroker

# A test's transaction is never committed, so there is nothing to ask for; and a database in memory, as test databases
# of SQLite are, does not stand a second thread that reads it meanwhile.
_QUIET = {"check_after": "1h"}
_NO_BACKGROUND: dict[str, Any] = {"DATABASES": [], "WAIT": True}


@contextmanager
def memory_broker(**options: Any) -> Iterator[MemoryBroker]:
    """A broker in memory, which `ts` speaks to meanwhile; the options are those of `MemoryBroker`."""
    with MemoryBroker(**{**_QUIET, **options}) as broker:
        group = conf.given().get("GROUP", "tests")
        replaced = {**getattr(settings, conf.NAME, {}), **_NO_BACKGROUND, "URL": broker.url, "GROUP": group}
        with override_settings(**{conf.NAME: replaced}):
            yield broker


class TallystickTestMixin:
    """Beside `TestCase`, `TransactionTestCase` and their kind: a broker for each class, empty when a test begins."""

    broker: MemoryBroker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()  # type: ignore[misc]
        stack = ExitStack()
        cls.broker = stack.enter_context(memory_broker())
        cls.addClassCleanup(stack.close)  # type: ignore[attr-defined]

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.broker.reset()

    @contextmanager
    def commits(self, using: str = DEFAULT_DB_ALIAS) -> Iterator[MemoryBroker]:
        """What happens inside counts as committed at the end, also in a `TestCase`, which never commits: the hooks of
        `on_commit` are called, those of blocks among them. In other tests commits are real."""
        if isinstance(self, TestCase):
            with self.captureOnCommitCallbacks(using=using, execute=True):
                yield self.broker
        else:
            yield self.broker

    def consume(self, *topics: str) -> int:
        """Have the handlers of these topics (all, if none is named) handle what is there, here and now, on the
        connections of the test; how many messages that were. What a handler raises is raised."""
        handlers.discover()
        known = {one.topic for one in ts.registered}
        unknown = sorted(set(topics) - known)
        if unknown:
            raise InvalidRequest(
                f"topics: no handler is subscribed to {', '.join(unknown)} (subscribed: "
                f"{', '.join(sorted(known)) or 'none'}). Check the name, and the modules {handlers.MODULE}.",
                field="topics",
            )
        ts.take_up(topics)
        total = 0
        while True:
            with self.commits():
                handled = self.broker.drain(ts.client)
            total += handled
            if not handled:
                return total
