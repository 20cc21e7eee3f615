"""What a host may have at once, and which failures are a call's own."""

from __future__ import annotations

from tallystick.broker.calls.url_failures import MAX_URLS, RECENT_MS, UrlFailures
from tallystick.broker.calls.window import FIRST_WINDOW, SLOW_MS, Window
from tallystick.core.calls import OutgoingCall

U, V = OutgoingCall("http://shop/u?gid=1"), OutgoingCall("http://shop/v")


def test_a_window_opens_for_slow_calls_up_to_the_setting() -> None:
    made, now, in_flight, limits = Window(20), 0, 0, []
    began: list[int] = []
    for _ in range(4):
        limits.append(made.limit)
        began += [now] * (made.limit - in_flight)
        in_flight = made.limit
        made.open_for_slow(began, in_flight, now + SLOW_MS - 1, 1_000)
        assert made.limit == in_flight
        now += SLOW_MS
        made.open_for_slow(began, in_flight, now, 1_000)
    assert limits == [8, 16, 20, 20]


def test_a_window_opens_no_further_than_there_is_spare_capacity() -> None:
    made = Window(64)
    began = [0] * FIRST_WINDOW
    assert made.open_for_slow(began, 8, SLOW_MS, 3) == 3
    assert made.limit == FIRST_WINDOW + 3
    began += [0] * 3
    assert made.open_for_slow(began, 11, SLOW_MS, -5) == 0
    assert made.limit == FIRST_WINDOW + 3  # what is under way stays, and nothing is added


def test_failures_make_a_window_small_and_slow_calls_open_it_again() -> None:
    made = Window(64)
    for _ in range(10):
        made.failed()
    assert made.limit == 1
    made.open_for_slow([0], 1, SLOW_MS, 100)
    assert made.limit == 2
    made.reset()
    assert made.limit == FIRST_WINDOW


def test_a_time_out_is_the_calls_own_if_a_later_call_was_answered() -> None:
    made = UrlFailures()
    made.answered(U, 5, 0)
    assert made.failed(U, 4, 9, 60_000, timed_out=True)
    assert not made.failed(U, 4, 9, 60_000, timed_out=False)
    assert not made.failed(U, 6, 9, 60_000, timed_out=True)


def test_a_url_that_fails_again_while_others_are_answered_fails_on_its_own() -> None:
    made = UrlFailures()
    assert not made.failed(U, 1, 1, 0, timed_out=False)
    made.answered(V, 2, 0)
    assert made.failed(OutgoingCall("http://shop/u?gid=2"), 3, 3, RECENT_MS, timed_out=False)
    assert not made.failed(V, 4, 4, 0, timed_out=False)
    assert not made.failed(U, 5, 5, RECENT_MS + 1, timed_out=False)  # by now the host may be down
    made.answered(U, 6, RECENT_MS + 1)
    assert not made.knows(U)
    assert not made.failed(U, 7, 7, RECENT_MS + 1, timed_out=False)


def test_urls_that_failed_are_remembered_up_to_a_limit() -> None:
    made = UrlFailures()
    for number in range(MAX_URLS + 1):
        made.failed(OutgoingCall(f"http://shop/{number}"), number, number, 0, timed_out=False)
    assert len(made._failing) == 1


def test_the_method_of_json_rpc_belongs_to_the_url() -> None:
    made = UrlFailures()
    made.failed(OutgoingCall("http://shop/?method=a", protocol="json-rpc"), 1, 1, 0, timed_out=False)
    assert made.knows(OutgoingCall("http://shop/?method=a", protocol="json-rpc"))
    assert not made.knows(OutgoingCall("http://shop/?method=b", protocol="json-rpc"))
