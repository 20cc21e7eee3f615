"""The client that services use to send and receive messages."""

from tallystick.client.async_client import AsyncClient
from tallystick.client.base.calls import CallOptions, CallsNotFinished, outgoing_call
from tallystick.client.base.message import Message, outgoing
from tallystick.client.base.settings import CheckBack
from tallystick.client.base.stats import Stats
from tallystick.client.base.values import UndecodableValue
from tallystick.client.client import Client
from tallystick.client.connection.levels import Sent
from tallystick.client.connection.questions import Fetched
from tallystick.client.proof import Verifier, verified_asgi, verified_wsgi, verifying_interceptor
from tallystick.client.transactions import AsyncTransaction, Transaction, TransactionBase

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
