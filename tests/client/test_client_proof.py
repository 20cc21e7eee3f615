"""The verifier of a service, and what stands around an application: who gets in, and what the application sees."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from asgi import asgi_server
from eventually import eventually
from tallystick import Verifier, verified_asgi, verified_wsgi
from tallystick.client import handlers
from tallystick.client.proof.verifier import KEYS_FILE_VARIABLE
from tallystick.core.clock import ManualClock, SystemClock
from tallystick.core.errors import ConfigError, Unproven
from tallystick.core.ids import new_nonce
from tallystick.core.signing import SIGNATURE_HEADER, SigningKey, sign
from tallystick.dtm import web

SECRET, OTHER = "s" * 40, "o" * 40
KEY, OTHER_KEY = SigningKey("a", SECRET), SigningKey("b", OTHER)
HOST = "shop.internal:8080"
ASKED = ("POST", "/trans-in?gid=g1", b"{}")


class Service:
    """A verifier with the time in hand, and requests as a broker makes them."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.verifier = Verifier({"a": SECRET}, clock=self.clock, **options)

    def signed(self, key: SigningKey = KEY, before_ms: int = 0) -> str:
        method, path, body = ASKED
        return sign(key, method, HOST, path, self.clock.now_ms() - before_ms, new_nonce(), body)

    def refusal(self, signature: str | None) -> str | None:
        try:
            self.verifier.verify(signature, *ASKED)
        except Unproven as refused:
            return refused.reason
        return None


# --- the verifier ----------------------------------------------------------------------------------------------------


def test_a_request_passes_once() -> None:
    service = Service()
    first = service.signed()
    assert [service.refusal(first) for _ in range(3)] == [None, "replayed", "replayed"]
    assert service.refusal(service.signed()) is None  # the broker's own repetition


@pytest.mark.parametrize("before_ms", [-300_000, -299_999, 0, 150_000, 300_000])
def test_a_request_passes_once_as_long_as_it_could_pass_at_all(before_ms: int) -> None:
    service = Service()
    signature = service.signed(before_ms=before_ms)
    assert service.refusal(signature) is None
    seen = set()
    for _ in range(130):
        seen.add(service.refusal(signature))
        service.clock.advance(5_000)
    assert seen == {"replayed", "skewed"}


def test_of_many_at_once_one_passes() -> None:
    service = Service()
    signature = service.signed()
    passed: list[str | None] = []
    threads = [threading.Thread(target=lambda: passed.append(service.refusal(signature))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, passed)) == ["None", *["replayed"] * 15]


def test_what_took_too_long_to_arrive_is_not_taken() -> None:
    """Else two of the same, both begun in time, could pass one after the other when the first is forgotten."""
    service = Service()
    claimed = service.verifier.claim(service.signed())
    service.clock.advance(300_001)
    with pytest.raises(Unproven, match="too long"):
        service.verifier.prove(claimed, *ASKED)


def test_a_full_memory_refuses_and_does_not_forget(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(most_nonces=3)
    first = [service.signed() for _ in range(3)]
    assert [service.refusal(one) for one in first] == [None] * 3
    assert service.refusal(service.signed()) == "full"
    assert "most_nonces (3)" in caplog.text
    assert [service.refusal(one) for one in first] == ["replayed"] * 3
    service.clock.advance(320_000)
    assert service.refusal(service.signed()) is None


def test_a_strangers_requests_fill_no_memory() -> None:
    service = Service(most_nonces=1)
    for _ in range(5):
        assert service.refusal(service.signed(SigningKey("a", OTHER))) == "altered"
    assert service.refusal(service.signed()) is None


def test_the_tolerance_can_be_chosen() -> None:
    service = Service(tolerance=2.5)
    assert service.refusal(service.signed(before_ms=2_500)) is None
    assert service.refusal(service.signed(before_ms=2_501)) == "skewed"
    assert service.refusal(service.signed(before_ms=-2_501)) == "skewed"


def test_what_a_proxy_takes_away_can_be_put_back() -> None:
    behind = Service(prefix="/shop/")
    method, path, body = ASKED
    signature = sign(KEY, method, HOST, f"/shop{path}", behind.clock.now_ms(), new_nonce(), body)
    assert behind.refusal(signature) is None
    assert Service().refusal(signature) == "altered"


def test_what_a_broker_signed_for_another_service_is_refused() -> None:
    assert Service(hosts=["bank:1", HOST]).refusal(Service().signed()) is None
    assert Service(hosts=f" bank:1, {HOST.upper()}").refusal(Service().signed()) is None
    assert Service(hosts="bank:1").refusal(Service().signed()) == "elsewhere"
    assert Service(hosts="shop.internal").refusal(Service().signed()) == "elsewhere"


@pytest.mark.parametrize("port", [80, 443])
def test_a_host_without_a_port_is_called_at_the_usual_ones(port: int) -> None:
    service = Service(hosts="shop.internal")
    method, path, body = ASKED
    signature = sign(KEY, method, f"shop.internal:{port}", path, service.clock.now_ms(), new_nonce(), body)
    assert service.refusal(signature) is None


@pytest.mark.parametrize("hosts", [(), "", ",", "http://shop:1", ["shop:1", ""], "shop:port", "a b:1"])
def test_what_is_no_host_is_refused(hosts: Any) -> None:
    with pytest.raises(ConfigError, match="hosts: "):
        Service(hosts=hosts)


def test_the_environment_says_the_hosts_of_those_that_verify_by_themselves(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {}
    for hosts in ("", HOST, "payments.internal:8080"):
        monkeypatch.setenv("TALLYSTICK_SIGNING_HOSTS", hosts)
        with httpx.Client(
            transport=httpx.WSGITransport(handlers.wsgi(_Committed())), base_url="http://testserver"
        ) as client:
            answers[hosts] = client.get("/?gid=g1", headers=headers("GET", "/?gid=g1")).status_code
    assert answers == {"": 200, HOST: 200, "payments.internal:8080": 401}


def test_keys_rotate_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"a {SECRET}\n")
    service = Service()
    service.verifier = Verifier(keys_file=path, clock=service.clock)
    assert service.refusal(service.signed()) is None
    assert service.refusal(service.signed(OTHER_KEY)) == "unknown_key"
    path.write_text(f"a {SECRET}\nb {OTHER}\n")
    eventually(lambda: service.refusal(service.signed(OTHER_KEY)) is None)
    assert service.refusal(service.signed()) is None
    path.write_text(f"b {OTHER}\n")
    eventually(lambda: service.refusal(service.signed()) == "unknown_key")
    assert service.refusal(service.signed(OTHER_KEY)) is None


def test_a_file_that_becomes_wrong_or_goes_leaves_the_last_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"a {SECRET}\n")
    service = Service()
    service.verifier = Verifier(keys_file=path, clock=service.clock)
    path.write_text(f"a {SECRET} {OTHER}\n")
    eventually(lambda: service.refusal(service.signed()) is None and "two words" in caplog.text)
    path.unlink()
    eventually(lambda: service.refusal(service.signed()) is None and "No such file" in caplog.text)
    assert SECRET not in caplog.text
    assert OTHER not in caplog.text


def test_a_file_that_others_may_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"a {SECRET}\n")
    Verifier(keys_file=path)
    assert caplog.text == ""
    path.chmod(0o640)
    Verifier(keys_file=path)
    assert "mode 640" in caplog.text
    assert SECRET not in caplog.text


def test_keys_are_needed_and_shown_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_FILE_VARIABLE, raising=False)
    for options in (
        {},
        {"keys": {}},
        {"keys": {"a": "short"}},
        {"keys": f"a {SECRET}", "keys_file": tmp_path},
        {"keys": {"a": SECRET}, "tolerance": 0},
        {"keys_file": tmp_path / "nothing"},
    ):
        with pytest.raises(ConfigError) as refused:
            Verifier(**options)
        assert SECRET not in str(refused.value)
    made = Verifier(f"a {SECRET}")
    assert SECRET not in f"{made!r} {vars(made)!r}"


# --- around an application -------------------------------------------------------------------------------------------


def shown(method: str, path: str, body: bytes) -> dict[str, str]:
    return {"method": method, "path": path, "body": body.decode("latin-1")}


async def _asgi_echo(request: Request) -> JSONResponse:
    return JSONResponse(shown(request.method, request.url.path, await request.body()))


def _wsgi_echo(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "application/json")])
    body = environ["wsgi.input"].read()  # all of it, whatever CONTENT_LENGTH says
    return [json.dumps(shown(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)).encode()]


@contextmanager
def asgi_client(app: Any) -> Iterator[httpx.Client]:
    with asgi_server(app) as url, httpx.Client(base_url=url) as client:
        yield client


def _asgi(verifier: Verifier | None, **options: Any) -> Any:
    app = Starlette(routes=[Route("/{rest:path}", _asgi_echo, methods=["GET", "POST"])])
    return asgi_client(verified_asgi(app, verifier, **options))


def _wsgi(verifier: Verifier | None, **options: Any) -> Any:
    return httpx.Client(
        transport=httpx.WSGITransport(verified_wsgi(_wsgi_echo, verifier, **options)), base_url="http://testserver"
    )


Around = Callable[..., Any]


@pytest.fixture(params=[_asgi, _wsgi], ids=["asgi", "wsgi"])
def around(request: pytest.FixtureRequest) -> Around:
    return request.param  # type: ignore[no-any-return]


def headers(method: str, path: str, body: bytes = b"", key: SigningKey = KEY) -> dict[str, str]:
    now_ms = SystemClock().now_ms()
    return {SIGNATURE_HEADER: sign(key, method, HOST, path, now_ms, new_nonce(), body)}


@pytest.fixture
def verifier() -> Verifier:
    return Verifier({"a": SECRET})


@pytest.mark.parametrize("body", [b"", b"{}", b"\x00\xff" * 100_000])
def test_what_a_broker_sent_arrives_unchanged(around: Around, verifier: Verifier, body: bytes) -> None:
    path = "/a%20b/c?gid=g1&x=%2F"
    with around(verifier) as client:
        answer = client.post(path, content=body, headers=headers("POST", path, body))
        assert (answer.status_code, answer.json()) == (200, shown("POST", "/a b/c", body))


def test_what_was_changed_or_came_before_is_refused(around: Around, verifier: Verifier) -> None:
    right = headers("POST", "/a?x=1", b"{}")
    attempts = [
        ("POST", "/a?x=1", b"[]", right),
        ("POST", "/a?x=2", b"{}", right),
        ("POST", "/b?x=1", b"{}", right),
        ("PUT", "/a?x=1", b"{}", right),
        ("POST", "/a?x=1", b"{}", {}),
        ("POST", "/a?x=1", b"{}", headers("POST", "/a?x=1", b"{}", SigningKey("a", OTHER))),
        ("POST", "/a?x=1", b"{}", headers("POST", "/a?x=1", b"{}", OTHER_KEY)),
        ("POST", "/a?x=1", b"{}", {SIGNATURE_HEADER: f"{right[SIGNATURE_HEADER]},{right[SIGNATURE_HEADER]}"}),
    ]
    with around(verifier) as client:
        for method, path, body, given in attempts:
            answer = client.request(method, path, content=body, headers=given)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert (answer.json()["code"], answer.json()["status"]) == ("unproven", 401)
        assert client.post("/a?x=1", content=b"{}", headers=right).status_code == 200
        again = client.post("/a?x=1", content=b"{}", headers=right)
        assert (again.status_code, again.json()["detail"]) == (401, "this very request came before")


def test_a_body_beyond_the_limit_is_refused_and_a_strangers_is_not_even_read(
    around: Around, verifier: Verifier
) -> None:
    with around(verifier, most_bytes=10) as client:
        assert client.post("/a", content=b"x" * 11, headers=headers("POST", "/a", b"x" * 11)).status_code == 413
        assert client.post("/a", content=b"x" * 10, headers=headers("POST", "/a", b"x" * 10)).status_code == 200
        assert client.post("/a", content=b"x" * 11).status_code == 401


def test_without_a_verifier_the_environment_must_name_keys(
    around: Around, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS_FILE_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=KEYS_FILE_VARIABLE):
        around(None)
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"a {SECRET}\n")
    monkeypatch.setenv(KEYS_FILE_VARIABLE, str(path))
    with around(None) as client:
        assert client.get("/a").status_code == 401
        assert client.get("/a", headers=headers("GET", "/a")).status_code == 200


def test_bytes_behind_the_verified_ones_are_not_there_for_the_application(verifier: Verifier) -> None:
    """A server that leaves the end of the body to the application, and a request that says its body is shorter."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/a",
        "wsgi.input": io.BytesIO(b"{}smuggled"),
        "wsgi.input_terminated": True,
        "CONTENT_LENGTH": "2",
        "HTTP_TALLYSTICK_SIGNATURE": headers("POST", "/a", b"{}")[SIGNATURE_HEADER],
    }
    (told,) = verified_wsgi(_wsgi_echo, verifier)(environ, lambda *_: None)
    assert json.loads(told)["body"] == "{}"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"a {SECRET}\n")
    monkeypatch.setenv(KEYS_FILE_VARIABLE, str(path))


class _Committed:
    """One who knows outcomes."""

    def decide(self, gid: str) -> str:
        return "committed"


@pytest.mark.usefixtures("environment")
def test_a_handler_inside_of_a_verified_application_does_not_verify_again(verifier: Verifier) -> None:
    """It could not: a request passes once."""
    inside = Starlette(routes=[Mount("/check", handlers.asgi(_Committed()))])
    for app in (inside, verified_asgi(inside), verified_asgi(inside, verifier)):
        with asgi_client(app) as client:
            path = "/check/?gid=g1"
            assert client.get(path).status_code == 401
            assert client.get(path, headers=headers("GET", path)).json()["outcome"] == "committed"


@pytest.mark.usefixtures("environment")
def test_only_the_path_of_the_handler_is_for_brokers_alone() -> None:
    with httpx.Client(
        transport=httpx.WSGITransport(handlers.wsgi(_Committed(), _wsgi_echo, "/check")), base_url="http://testserver"
    ) as client:
        assert client.get("/other").status_code == 200
        assert client.get("/check?gid=g1").status_code == 401
        assert client.get("/check?gid=g1", headers=headers("GET", "/check?gid=g1")).status_code == 200


def test_keys_that_cannot_be_read_are_an_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_FILE_VARIABLE, str(tmp_path / "nothing"))
    for start in (
        lambda: handlers.wsgi(_Committed()),
        lambda: handlers.asgi(_Committed()),
        lambda: verified_wsgi(_wsgi_echo),
        lambda: verified_asgi(Starlette()),
        lambda: web.flask(lambda: None),
    ):
        with pytest.raises(ConfigError, match="No such file"):
            start()


def test_keys_that_are_named_after_the_start_and_cannot_be_read_let_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS_FILE_VARIABLE, raising=False)
    app = handlers.wsgi(_Committed())
    monkeypatch.setenv(KEYS_FILE_VARIABLE, str(tmp_path / "nothing"))
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "gid=g1", "wsgi.input": io.BytesIO()}
    with pytest.raises(ConfigError, match="No such file"):
        app(environ, lambda *_: None)


class _InPieces(io.BytesIO):
    """As a server hands out chunks."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        return super().read(min(size, 7))


@pytest.mark.parametrize("said", [{"wsgi.input_terminated": True}, {"HTTP_TRANSFER_ENCODING": "Chunked"}], ids=str)
def test_a_body_in_chunks_is_verified(verifier: Verifier, said: dict[str, Any]) -> None:
    body = b"{}" * 10
    told: list[str] = []

    def ask(most_bytes: int, body: bytes = body) -> bytes:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/a",
            "wsgi.input": _InPieces(body),
            "HTTP_TALLYSTICK_SIGNATURE": headers("POST", "/a", b"{}" * 10)[SIGNATURE_HEADER],
            **said,
        }
        app = verified_wsgi(_wsgi_echo, verifier, most_bytes=most_bytes)
        return b"".join(app(environ, lambda status, _: told.append(status[:3])))

    assert json.loads(ask(20))["body"] == body.decode()
    ask(19)
    ask(1_000, body[:-1])
    assert told == ["200", "413", "401"]


def test_the_path_as_a_server_received_it_counts(verifier: Verifier) -> None:
    """With escapes that need not be there, which only the raw path shows."""
    path = "/%74rans-in?gid=g1"
    for name in ("RAW_URI", "REQUEST_URI"):
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/trans-in",
            "QUERY_STRING": urlsplit(path).query,
            name: path,
            "wsgi.input": io.BytesIO(),
            "HTTP_TALLYSTICK_SIGNATURE": headers("GET", path)[SIGNATURE_HEADER],
        }
        (told,) = verified_wsgi(_wsgi_echo, verifier)(environ, lambda *_: None)
        assert json.loads(told)["path"] == "/trans-in"


def test_refusals_are_logged_without_what_was_sent(
    around: Around, verifier: Verifier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with around(verifier) as client:
        client.post("/a", content=b"a secret of the caller's")
    assert "a request was refused" in caplog.text
    assert "a secret" not in caplog.text
    assert SECRET not in caplog.text
