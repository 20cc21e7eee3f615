"""PyPI's dtmcli with a broker that signs: it knows nothing of signatures, and they do it no harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from dtmcli_bank import FAST, Bank

from brokers import BrokerProcess, running_broker
from tallystick.signing_keys import new_key_line

pytestmark = [pytest.mark.mariadb, pytest.mark.full]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    keys: Path = tmp_path_factory.mktemp("keys") / "signing.keys"
    keys.touch(0o600)
    keys.write_text(new_key_line())
    with running_broker(signing_keys_file=str(keys), **FAST) as process:
        yield process


def test_calls_and_check_backs_arrive_as_ever(bank: Bank) -> None:
    gid = f"dtmcli-{uuid4().hex}"
    assert bank.do("transfer", gid=gid, then="die after", timeout_to_fail=1).raised == "killed"
    bank.becomes(gid, "succeed")
    assert bank.balances() == (-30, 30)
    assert {(one["path"], one["status"]) for one in bank.seen(gid)} == {("/query_prepared", 200), ("/in", 200)}
