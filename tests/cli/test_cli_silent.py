"""Somebody takes the connection and says nothing: that is another matter than nobody being there."""

from __future__ import annotations

import socket

import pytest

from tallystick.core.errors import BrokerUnavailable
from tallystick.link import Link


def test_a_broker_that_does_not_answer_in_time_is_not_said_to_be_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Link(url, timeout=0.2) as link, pytest.raises(BrokerUnavailable) as told:
            link.get("topics")
    assert "has not answered within 0.2 s" in told.value.detail
    assert "tallystick serve" not in told.value.detail
