"""The client that services use to send and receive messages."""

from tallystick.client.async_client import AsyncClient
from tallystick.client.calls import CallOptions, CallsNotFinished, outgoing_call
from tallystick.client.client import Client
from tallystick.client.message import Message, outgoing
from tallystick.client.reading import Fetched
from tallystick.client.sending import Sent
from tallystick.client.settings import CheckBack
from tallystick.client.stats import Stats
from tallystick.client.transaction import AsyncTransaction, Transaction

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
    "outgoing",
    "outgoing_call",
]
