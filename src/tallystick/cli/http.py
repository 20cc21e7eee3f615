"""The command line's way to a broker: one JSON request at a time, with nothing to import but the standard library."""

from __future__ import annotations

import http.client
import json
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tallystick.core.errors import BrokerUnavailable, InvalidRequest, TallystickError, error_from_code

TIMEOUT_SECONDS = 15.0


class Broker:
    """A connection to the broker at `url`, opened at the first request and again when it was lost."""

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidRequest(f"--url: {url!r} is no address: {error}", field="url") from error
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidRequest(f"--url: {url!r} is no address such as http://127.0.0.1:7440", field="url")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = url
        self._prefix = parts.path.rstrip("/")
        self._connection = kind(host, port, timeout=timeout)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, *path: str, **query: Any) -> Any:
        """The answer of GET /v1/<path>; parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", _path(*path) + (f"?{urlencode(given)}" if given else ""), None)

    def post(self, *path: str, **content: Any) -> Any:
        return self._ask("POST", _path(*path), content)

    def put(self, *path: str, **content: Any) -> Any:
        return self._ask("PUT", _path(*path), content)

    def delete(self, *path: str) -> None:
        self._ask("DELETE", _path(*path), None)

    def ready(self) -> str:
        """Why the broker takes no work, or an empty string if it does."""
        status, content = self._exchange("GET", "/readyz", None)
        return "" if status == 200 else str(self._decoded(status, content).get("reason", f"status {status}"))

    def _ask(self, method: str, path: str, content: dict[str, Any] | None) -> Any:
        status, answer = self._exchange(method, path, content)
        if status == 204:
            return None
        decoded = self._decoded(status, answer)
        if status >= 400:
            raise _problem(status, decoded)
        return decoded

    def _exchange(self, method: str, path: str, content: dict[str, Any] | None) -> tuple[int, bytes]:
        body = None if content is None else json.dumps(content)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            self._connection.request(method, self._prefix + path, body, headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise BrokerUnavailable(
                f"no broker answers at {self.url} ({_reason(error)}); "
                "start one with `tallystick serve`, or name another with --url"
            ) from error

    def _decoded(self, status: int, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError as error:
            raise BrokerUnavailable(
                f"what answers at {self.url} is no Tallystick broker (status {status}, no JSON); check --url"
            ) from error


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _problem(status: int, decoded: Any) -> TallystickError:
    told = decoded if isinstance(decoded, dict) else {}
    detail = str(told.get("detail") or f"the broker answered with status {status}")
    return error_from_code(str(told.get("code", "error")), detail, told.get("field"))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
