"""The client that services use to send and receive messages."""

from .async_client import AsyncClient
from .client import Client
from .message import Message, outgoing
from .reading import Fetched
from .sending import Sent
from .settings import CheckBack
from .stats import Stats
from .transaction import AsyncTransaction, Transaction

__all__ = [
    "AsyncClient",
    "AsyncTransaction",
    "CheckBack",
    "Client",
    "Fetched",
    "Message",
    "Sent",
    "Stats",
    "Transaction",
    "outgoing",
]
