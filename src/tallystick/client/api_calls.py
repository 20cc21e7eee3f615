"""Calls: made without a transaction, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallystick.client import reading, sending
from tallystick.client.api_base import ApiBase
from tallystick.client.calls import CallOptions, outgoing_call, wait_seconds
from tallystick.client.calls_wait import wait_for_calls
from tallystick.client.sending import Sent
from tallystick.core.calls import CallsView, OutgoingCall, Protocol
from tallystick.core.names import check_gid


class CallsApi(ApiBase):
    """A call is a message with a URL, which the broker delivers itself, again and again until it is answered."""

    async def call(
        self,
        url: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        delay: float | None = None,
        protocol: Protocol = "http",
        call_options: CallOptions | None = None,
        gid: str | None = None,
        wait: bool | float = False,
    ) -> Sent:
        """Have the broker call a URL. Once this returns the call is durable, and is made until it succeeds.

        A gid that was used before makes no second call. With `wait` (True: 60 s, or seconds) this stays for the first
        answer, and raises `CallsNotFinished` unless it was a success.
        """
        one = outgoing_call(url, body, headers=headers, timeout=timeout, delay=delay, protocol=protocol)
        return await self.send_calls([one], call_options=call_options, gid=gid, wait=wait)

    async def send_calls(
        self,
        calls: Sequence[OutgoingCall],
        *,
        call_options: CallOptions | None = None,
        gid: str | None = None,
        wait: bool | float = False,
    ) -> Sent:
        """Have the broker make several calls (of `outgoing_call`), in order or concurrently; see `call`."""
        seconds = wait_seconds(wait)
        options = None if call_options is None else call_options.on_the_wire()
        sent = await sending.send_calls(self._core, list(calls), options, gid)
        if seconds:
            broker = await self._core.runtime().brokers.of_gid(sent.gid or "")
            await wait_for_calls(broker, sent.gid or "", seconds)
        return sent

    async def calls(self, gid: str) -> CallsView:
        """What became of the calls of a transaction; `NotFound` if there are none."""
        broker = await self._core.runtime().brokers.of_gid(check_gid(gid))
        return await reading.calls(broker, gid, 0.0, self._core.settings.timeout)
