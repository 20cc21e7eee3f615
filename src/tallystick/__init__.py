"""Tallystick: a local database transaction and its messages happen together or not at all."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick import errors
    from tallystick.client import (
        AsyncClient,
        AsyncTransaction,
        CallOptions,
        CallsNotFinished,
        CheckBack,
        Client,
        Fetched,
        Message,
        Sent,
        Stats,
        Transaction,
        TransactionBase,
        UndecodableValue,
        Verifier,
        outgoing,
        outgoing_call,
        verified_asgi,
        verified_wsgi,
        verifying_interceptor,
    )
    from tallystick.errors import (
        AlreadyCommitted,
        BrokerUnavailable,
        BrokerUnreachable,
        OutcomeUnknown,
        TallystickError,
        TransactionFailed,
    )

    __version__: str

__all__ = [
    "AlreadyCommitted",
    "AsyncClient",
    "AsyncTransaction",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "CallOptions",
    "CallsNotFinished",
    "CheckBack",
    "Client",
    "Fetched",
    "Message",
    "OutcomeUnknown",
    "Sent",
    "Stats",
    "TallystickError",
    "Transaction",
    "TransactionBase",
    "TransactionFailed",
    "UndecodableValue",
    "Verifier",
    "errors",
    "outgoing",
    "outgoing_call",
    "verified_asgi",
    "verified_wsgi",
    "verifying_interceptor",
]

_ERRORS = {
    "AlreadyCommitted",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "OutcomeUnknown",
    "TallystickError",
    "TransactionFailed",
}

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other

    def __getattr__(name: str) -> Any:
        # Late: the broker and the command line start without the client, and few ask for the version. Two threads may
        # import this package at once: see `lazy_names`.
        if name == "__version__":
            return import_module("importlib.metadata").version("tallystick")
        if name == "errors":
            return import_module("tallystick.errors")
        if name in _ERRORS:
            return getattr(import_module("tallystick.errors"), name)
        if name in __all__:
            return getattr(import_module("tallystick.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, *globals()]
