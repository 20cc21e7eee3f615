"""One HTTP/1.1 connection: uvicorn's, with what a broker may not leave open."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tallystick.api.serving.problems import problem_of
from tallystick.core.errors import InvalidRequest, TooLarge

HEAD_BYTES = 65_536
"""How long the request line with all headers may be, and the trailers of a body in chunks."""

_FRAMING = (b"content-length", b"transfer-encoding")


class Http1Connection(HttpToolsProtocol):
    """Three things are different.

    A head without an end is refused: nobody may fill the broker's memory with it. A wish for another protocol
    (`Upgrade: h2c`, which Java's client sends with every request) is ignored, as it may be: the parser would take the
    body for the first words of that protocol, and the request would be carried out without it. And what is no HTTP
    at all is answered in the words of every other error.
    """

    _loose_bytes = 0  # received since the last thing that has an announced length
    _head_bytes = 0
    _replaying = False

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._loose_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(error.__context__ or error)
        else:
            if self._loose_bytes > HEAD_BYTES:
                self._refuse(_endless())

    # --- the parser's callbacks ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._replaying:
            self._head_bytes = 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._replaying:
            self._count(len(name) + len(value))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._replaying:
            self._loose_bytes = 0
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose_bytes = 0
        if not self.parser.should_upgrade():  # where it comes before the body
            super().on_message_complete()

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > HEAD_BYTES:
            raise _endless()

    # --- what the parser does not do -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._go_on_without_upgrade()
                data = data[upgrade.args[0] :]

    def _go_on_without_upgrade(self) -> None:
        """The head was read, and the request is on its way. A new parser is told of a request with a body of the same
        form, and reads the rest as if it had read the head, too."""
        framing = [name + b": " + value + b"\r\n" for name, value in self.headers if name in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self.parser.feed_data(b"".join((b"POST / HTTP/1.1\r\n", *framing, b"\r\n")))
        finally:
            self._replaying = False

    def _refuse(self, error: BaseException) -> None:
        known = error if isinstance(error, TooLarge) else InvalidRequest(f"this is not HTTP/1.1: {error}")
        status, body, _ = problem_of(known)
        head = b"content-type: application/problem+json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def _endless() -> TooLarge:
    return TooLarge(f"the request has more than {HEAD_BYTES} bytes of headers, the limit of this broker")
