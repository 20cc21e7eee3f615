from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers import running_broker


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_broker() as broker:
        yield broker.url
