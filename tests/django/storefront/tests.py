"""The shop's own tests, as a project writes them: `manage.py test storefront` runs them."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client, TestCase, TransactionTestCase

from storefront.models import Order
from tallystick import outgoing
from tallystick.core.errors import InvalidRequest
from tallystick.django import ts
from tallystick.django.test import TallystickTestMixin


class InATransaction(TallystickTestMixin, TestCase):
    def test_what_was_sent(self) -> None:
        with self.commits() as broker:
            assert Client().post("/order/orders/tea").status_code == 200
            assert broker.messages("orders") == []
        self.broker.assert_sent("orders", "tea", times=1)
        assert Order.objects.filter(note="tea").exists()

    def test_the_next_test_begins_with_nothing(self) -> None:
        self.broker.assert_nothing_sent()
        assert not Order.objects.exists()

    def test_what_is_not_committed_is_not_sent(self) -> None:
        Client().post("/order/orders/coffee")
        assert self.broker.messages("orders") == []

    def test_a_block_that_was_undone_sends_nothing(self) -> None:
        with self.commits(), transaction.atomic():
            Client().post("/order/orders/cocoa")
            transaction.set_rollback(True)
        assert self.broker.messages("orders") == []

    def test_handlers_run_in_the_test(self) -> None:
        ts.send("letters", "a letter")
        assert self.consume("letters") == 1
        assert Order.objects.filter(note="a letter").exists()
        self.broker.assert_sent("answers", "to a letter")

    def test_a_topic_without_a_handler_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match=r"no handler is subscribed to leters \(subscribed: .*letters"):
            self.consume("letters", "leters")

    def test_a_handler_by_offset_goes_on_where_it_was(self) -> None:
        for round in ("first", "second"):
            ts.send_many([outgoing("ledger", f"{round} {number}") for number in range(3)])
            assert self.consume("ledger") == 3
            assert self.consume("ledger") == 0
        assert Order.objects.filter(note__startswith="second").count() == 3
        assert [message.text for message in self.broker.messages("booked")][-1] == "second 2"

    def test_a_handler_by_offset_from_the_latest_message_passes_over_other_tags(self) -> None:
        ts.send("news", "before", tag="new")
        assert self.consume("news") == 0
        ts.send("news", "left out", tag="old")
        assert self.consume("news") == 0
        ts.send("news", "now", tag="new")
        assert self.consume("news") == 1
        assert [order.note for order in Order.objects.all()] == ["now"]


class WithRealCommits(TallystickTestMixin, TransactionTestCase):
    def test_what_was_sent(self) -> None:
        with self.commits():
            Client().post("/order/orders/tea")
        self.broker.assert_sent("orders", "tea", times=1)

    def test_handlers_run_in_the_test(self) -> None:
        ts.send("parcels", "a parcel")
        assert self.consume() == 1
        assert Order.objects.filter(note="a parcel").exists()

    def test_a_handler_by_offset_goes_on_where_it_was(self) -> None:
        for round in ("first", "second"):
            ts.send_many([outgoing("ledger", f"{round} {number}") for number in range(3)])
            assert self.consume("ledger") == 3
            assert self.consume("ledger") == 0
        assert Order.objects.filter(note__startswith="second").count() == 3
        assert [message.text for message in self.broker.messages("booked")][-1] == "second 2"

    def test_a_handler_by_offset_from_the_latest_message_passes_over_other_tags(self) -> None:
        ts.send("news", "before", tag="new")
        assert self.consume("news") == 0
        ts.send("news", "left out", tag="old")
        assert self.consume("news") == 0
        ts.send("news", "now", tag="new")
        assert self.consume("news") == 1
        assert [order.note for order in Order.objects.all()] == ["now"]
