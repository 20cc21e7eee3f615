"""The sizes that a broker refuses to exceed, checked before anything is parsed or stored."""

from __future__ import annotations

from msgspec import Struct

from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.headers import check_count
from tallystick.core.message import OutgoingMessage

MIB = 1024 * 1024
MOST_STORES = 1_024  # of a cluster
PATIENCE_SECONDS = 10.0  # for which a request waits for a store that does not answer


class Limits(Struct, frozen=True):
    message_bytes: int = 4 * MIB
    request_bytes: int = 16 * MIB
    transaction_messages: int = 1_000
    topics: int = 10_000
    tokens: int = 10_000
    groups: int = 10_000  # of each kind: consumer groups, and places that check-backs go to
    queues_per_topic: int = 256
    # One part of a transaction may come in several requests (a Spark task's rows); each holds at most this many.
    part_messages: int = 100_000

    def check_messages(self, messages: list[OutgoingMessage], at: str, most: int | None = None) -> None:
        most = self.transaction_messages if most is None else most
        if len(messages) > most:
            raise TooLarge(f"{at}: {len(messages)} messages, the limit is {most}", field=at)
        for index, message in enumerate(messages):
            if len(message.value) > self.message_bytes:
                raise TooLarge(
                    f"{at}[{index}].value: {len(message.value)} bytes, the limit is {self.message_bytes}",
                    field=f"{at}[{index}].value",
                )
            if message.headers:
                check_count(message.headers, f"{at}[{index}].headers")
            if message.delay_ms and message.deliver_at:
                field = f"{at}[{index}].delay_ms"
                raise InvalidRequest(f"{field}: give delay_ms or deliver_at, not both", field=field)

    def check_request(self, size: int, at: str) -> None:
        if size > self.request_bytes:
            raise TooLarge(f"{at}: {size} bytes in one request, the limit is {self.request_bytes}", field=at)

    def check_calls(self, calls: list[OutgoingCall], at: str) -> None:
        if len(calls) > self.transaction_messages:
            raise TooLarge(f"{at}: {len(calls)} calls, the limit is {self.transaction_messages}", field=at)
        for index, call in enumerate(calls):
            if len(call.body) > self.message_bytes:
                raise TooLarge(
                    f"{at}[{index}].body: {len(call.body)} bytes, the limit is {self.message_bytes}",
                    field=f"{at}[{index}].body",
                )
            if call.headers:
                check_count(call.headers, f"{at}[{index}].headers")
