"""The client that services use to send and receive messages."""

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.client.async_client import AsyncClient
    from tallystick.client.base.calls import CallOptions, CallsNotFinished, outgoing_call
    from tallystick.client.base.message import Message, outgoing
    from tallystick.client.base.settings import CheckBack
    from tallystick.client.base.stats import Stats
    from tallystick.client.base.values import UndecodableValue
    from tallystick.client.client import Client
    from tallystick.client.connection.levels import Sent
    from tallystick.client.connection.questions import Fetched
    from tallystick.client.proof.middleware import verified_asgi, verified_wsgi
    from tallystick.client.proof.verifier import Verifier
    from tallystick.client.proof.verifying import verifying_interceptor
    from tallystick.client.transactions.transaction import AsyncTransaction, Transaction, TransactionBase

__all__ = [
    "AsyncClient",
    "AsyncTransaction",
    "CallOptions",
    "CallsNotFinished",
    "CheckBack",
    "Client",
    "Fetched",
    "Message",
    "Sent",
    "Stats",
    "Transaction",
    "TransactionBase",
    "UndecodableValue",
    "Verifier",
    "outgoing",
    "outgoing_call",
    "verified_asgi",
    "verified_wsgi",
    "verifying_interceptor",
]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "async_client": ("AsyncClient",),
            "base.calls": ("CallOptions", "CallsNotFinished", "outgoing_call"),
            "base.message": ("Message", "outgoing"),
            "base.settings": ("CheckBack",),
            "base.stats": ("Stats",),
            "base.values": ("UndecodableValue",),
            "client": ("Client",),
            "connection.levels": ("Sent",),
            "connection.questions": ("Fetched",),
            "proof.verifier": ("Verifier",),
            "proof.middleware": ("verified_asgi", "verified_wsgi"),
            "proof.verifying": ("verifying_interceptor",),
            "transactions.transaction": ("AsyncTransaction", "Transaction", "TransactionBase"),
        },
    )
