"""A broker for the commands to speak to."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Post

from brokers import running_broker


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_broker(store="memory", check_interval="100ms", check_interval_cap="1s") as broker:
        yield broker.url


@pytest.fixture
def post(url: str) -> Post:
    """Speak to the broker without the command line: `post("/v1/messages", messages=[...])`."""

    def send(path: str, **content: Any) -> Any:
        request = urllib.request.Request(url + path, json.dumps(content).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    return send
