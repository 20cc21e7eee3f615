"""Who asks: a token goes with every request of a client, and comes from where it was said to be."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from keeper import Keeper, doorkeeper
from tallystick.client.transactions.modes import ModeName
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.credentials.tokens import SecretToken, TokenFile
from tallystick.errors import Forbidden, InvalidRequest, Unauthenticated
from tallystick.link import Link

TOKEN = f"tally_abcdefghijkl_{uuid.uuid4().hex}"


@pytest.fixture
def keeper(broker: BrokerProcess) -> Iterator[Keeper]:
    with doorkeeper(broker.url, TOKEN) as made:
        yield made


def shown(keeper: Keeper) -> set[str]:
    return {authorization for _, authorization in keeper.seen}


def test_threads_show_the_token_with_every_request(keeper: Keeper, topic: str, bank: Bank) -> None:
    got: list[bytes] = []
    with tallystick.Client(keeper.url, group="g-token", token=TOKEN, database=bank.open) as client:
        client.create_topic(topic)
        client.send(topic, b"sent")
        with bank.connection() as connection, client.transaction(connection, wait=True) as tx:
            tx.send(topic, b"in a block")
        client.subscribe(topic, group="readers")(lambda message: got.append(message.value))
        client.start()
        eventually(lambda: sorted(got) == [b"in a block", b"sent"])
        assert len(client.fetch(topic, queue=0, offset=0).messages) >= 0
        eventually(lambda: any(path == "/v1/checks/poll" for path, _ in keeper.seen))
    asked = {path.partition("?")[0] for path, _ in keeper.seen}
    assert {"/v1/batch", "/v1/cluster", "/v1/info", "/v1/checks/poll", "/v1/groups/readers/receive"} <= asked
    assert shown(keeper) == {f"Bearer {TOKEN}"}


async def test_an_event_loop_shows_the_token_with_every_request(keeper: Keeper, topic: str) -> None:
    async with tallystick.AsyncClient(keeper.url, token=TOKEN) as client:
        await client.create_topic(topic)
        await asyncio.gather(*(client.send(topic, b"x") for _ in range(20)))
        await client.topics()
    assert shown(keeper) == {f"Bearer {TOKEN}"}


def test_a_link_shows_the_token(keeper: Keeper) -> None:
    with Link(keeper.url, credentials=Credentials(SecretToken(TOKEN))) as link:
        link.get("info")
    assert shown(keeper) == {f"Bearer {TOKEN}"}


def test_a_token_wins_over_the_login_of_an_address(keeper: Keeper, topic: str) -> None:
    address = keeper.url.replace("//", "//name:word@")
    with tallystick.Client(address, token=TOKEN) as client:
        client.topics()
    with Link(address, credentials=Credentials(SecretToken(TOKEN))) as link:
        link.get("info")
    assert shown(keeper) == {f"Bearer {TOKEN}"}


def test_the_login_of_an_address_is_shown_where_there_is_no_token(keeper: Keeper) -> None:
    keeper.token = ""
    with Link(keeper.url.replace("//", "//name:word@")) as link:
        link.get("info")
    assert shown(keeper) == {"Basic bmFtZTp3b3Jk"}


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bare", [False, True], ids=["as a broker", "as a proxy"])
@pytest.mark.parametrize(("status", "kind"), [(401, Unauthenticated), (403, Forbidden)])
def test_a_refusal_is_its_own_error_and_is_not_asked_for_twice(
    keeper: Keeper, topic: str, status: int, kind: type[Exception], bare: bool
) -> None:
    keeper.bare = bare
    with tallystick.Client(keeper.url, token=TOKEN) as client:
        client.topics()
        keeper.judge = lambda path, body: status
        for ask in (lambda: client.send(topic, b"x"), client.topics, lambda: client.send(topic, b"x", level=1)):
            before = len(keeper.refused)
            with pytest.raises(kind):
                ask()
            assert len(keeper.refused) == before + 1


def test_who_shows_no_token_is_told_what_to_do(keeper: Keeper) -> None:
    with tallystick.Client(keeper.url) as client, pytest.raises(Unauthenticated, match="TALLYSTICK_TOKEN"):
        client.topics()
    with Link(keeper.url) as link, pytest.raises(Unauthenticated, match="--token-file"):
        link.get("topics")


def test_a_batch_of_many_that_are_unknown_is_one_request(keeper: Keeper, topic: str) -> None:
    async def send_many() -> list[object]:
        async with tallystick.AsyncClient(keeper.url, token=TOKEN) as client:
            await client.create_topic(topic)
            keeper.judge = lambda path, body: 401 if path == "/v1/batch" else 0
            return await asyncio.gather(*(client.send(topic, b"x") for _ in range(100)), return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(send_many())} == {Unauthenticated}
    assert keeper.refused.count("/v1/batch") < 10


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("mode", ["check-back", "consumer-dedup"])
def test_a_block_whose_beginning_is_refused_rolls_back(
    keeper: Keeper, topic: str, bank: Bank, status: int, mode: ModeName
) -> None:
    with tallystick.Client(keeper.url, group="g-refused", token=TOKEN) as client:
        client.create_topic(topic)
        keeper.judge = lambda path, body: status if path == "/v1/batch" else 0
        with pytest.raises((Unauthenticated, Forbidden)):
            pay(client, bank, topic, mode)
        assert bank.notes() == []


def pay(client: tallystick.Client, bank: Bank, topic: str, mode: ModeName = "check-back") -> None:
    with bank.connection() as connection, client.transaction(connection, mode=mode) as tx:
        bank.note(connection, "paid")
        tx.send(topic, b"paid")


# --- where it comes from ----------------------------------------------------------------------------------------


def test_a_token_is_read_again_when_its_file_has_changed(keeper: Keeper, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with tallystick.Client(keeper.url, token_file=file) as client:
        client.create_topic(topic)
        client.send(topic, b"x")
        other = tmp_path / "other"
        other.write_text("tally_another\n")
        os.replace(other, file)
        keeper.token = "tally_another"

        def taken() -> bool:
            try:
                client.send(topic, b"y")
                client.topics()
            except Unauthenticated:
                return False
            return True

        eventually(taken)


def test_a_file_that_cannot_be_read_for_a_while_leaves_the_token_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    source = TokenFile(str(file), look_seconds=0.0)
    first = source.current()
    file.unlink()
    assert source.current() is first
    assert source.current() is first
    file.write_text("")
    assert source.current() is first
    file.write_text("second two-words")
    assert source.current() is first
    assert len(caplog.records) == 3  # one for each reason
    assert "two-words" not in caplog.text
    file.write_text("second")
    assert source.current().reveal() == "second"
    assert len(caplog.records) == 3


def test_a_token_that_is_taken_out_of_the_environment_after_the_start_is_kept(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TALLYSTICK_TOKEN", TOKEN)
    with tallystick.Client(keeper.url) as client:
        monkeypatch.delenv("TALLYSTICK_TOKEN")
        client.create_topic(topic)
        client.send(topic, b"x")
        monkeypatch.setenv("TALLYSTICK_TOKEN", "two words")
        client.send(topic, b"y")
        client.topics()
        assert caplog.text.count("the token before it is used") == 1
        monkeypatch.setenv("TALLYSTICK_TOKEN", "tally_another")
        keeper.token = "tally_another"
        client.send(topic, b"z")


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("in-a-file")
    assert find_credentials().token() is None
    monkeypatch.setenv("TALLYSTICK_TOKEN_FILE", str(file))
    assert _text(find_credentials()) == "in-a-file"
    assert _text(find_credentials(SecretToken("given"))) == "given"
    monkeypatch.delenv("TALLYSTICK_TOKEN_FILE")
    monkeypatch.setenv("TALLYSTICK_TOKEN", "in-the-environment")
    assert _text(find_credentials()) == "in-the-environment"
    assert _text(find_credentials(token_file=file)) == "in-a-file"


def _text(credentials: Credentials) -> str:
    token = credentials.token()
    assert token is not None
    return token.reveal()


def test_a_client_takes_its_token_from_the_environment(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_TOKEN", TOKEN)
    with tallystick.Client(keeper.url) as client:
        client.topics()


def test_what_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="give one of them"):
        tallystick.Client(token="a", token_file="b")
    with pytest.raises(InvalidRequest, match="no certificate for it"):
        tallystick.Client(key=tmp_path / "key.pem")
    with pytest.raises(InvalidRequest, match="nothing-there cannot be read"):
        tallystick.Client(token_file=tmp_path / "nothing-there")
    with pytest.raises(InvalidRequest, match=r"ca: .*nothing-there is no file"):
        tallystick.Client(ca=tmp_path / "nothing-there")
    monkeypatch.setenv("TALLYSTICK_TOKEN", "a")
    monkeypatch.setenv("TALLYSTICK_TOKEN_FILE", "b")
    with pytest.raises(InvalidRequest, match="both set"):
        tallystick.Client()


@pytest.mark.parametrize("wrong", ["", "two words", "end\r\nof: line", "nul\0", "späť", "x" * 20_000, 7])
def test_what_is_no_token_is_refused_in_words_that_do_not_show_it(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="token: ") as refused:
        tallystick.Client(token=wrong)  # type: ignore[arg-type]
    assert not str(wrong) or str(wrong) not in str(refused.value).replace("7 ", "")


def test_a_pickle_says_where_a_token_is_and_never_what(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("in-a-file")
    monkeypatch.setenv("TALLYSTICK_TOKEN", "in-the-environment")
    for credentials in (find_credentials(), find_credentials(token_file=file)):
        text = _text(credentials)
        pickled = pickle.dumps(credentials)
        assert text.encode() not in pickled
        assert _text(pickle.loads(pickled)) == text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(find_credentials(SecretToken("given")))
    elsewhere = pickle.loads(pickle.dumps(find_credentials()))
    monkeypatch.delenv("TALLYSTICK_TOKEN")
    with pytest.raises(InvalidRequest, match=r"spark\.executorEnv\.TALLYSTICK_TOKEN"):
        elsewhere.token()


def test_a_token_that_is_sent_without_tls_over_a_network_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    from tallystick.core.addresses import broker_address

    credentials = Credentials(SecretToken(TOKEN))
    with caplog.at_level(logging.WARNING):
        for url in ("http://127.0.0.1:1", "http://localhost:1", "https://far.example", "http://far.example:1") * 2:
            credentials.authorization(broker_address(url))
    assert [record.args for record in caplog.records] == [("far.example:1",)]
    assert TOKEN not in caplog.text
