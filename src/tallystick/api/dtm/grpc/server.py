"""The gRPC port of a broker: it lives between the broker's opening and its closing, in the same event loop."""

from __future__ import annotations

import errno
import socket

import grpc
from grpc_reflection.v1alpha import reflection

from tallystick.api.dtm.grpc.messages import POOL, SERVICE
from tallystick.api.dtm.grpc.service import Service
from tallystick.broker.broker import Broker
from tallystick.broker.config import Config


class GrpcServer:
    """Answers on the addresses that `sockets` have reserved: bound, but not listening.

    gRPC takes no sockets of others. It binds the same addresses beside them, which the kernel allows while nobody
    listens there; so a taken port was told before the store was opened, and port 0 has become a number.
    """

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        self._config, self._sockets = config, sockets
        self._server: grpc.aio.Server | None = None
        self._service: Service | None = None

    async def start(self, broker: Broker) -> None:
        """Raises OSError if another program began to listen on the port since it was reserved."""
        self._service = Service(broker)
        self._server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=self._config.max_long_polls)
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        reflection.enable_server_reflection((SERVICE.full_name, reflection.SERVICE_NAME), self._server, POOL)
        for one in self._sockets:
            self._listen(self._server, one)
        await self._server.start()

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # on by default: two brokers would share one port, and neither would know
            ("grpc.max_receive_message_length", self._config.max_request_bytes),
        ]

    def _listen(self, server: grpc.aio.Server, reserved: socket.socket) -> None:
        host, port = reserved.getsockname()[:2]
        try:
            server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:  # which does not say why; there is one reason left
            raise OSError(errno.EADDRINUSE, str(error)) from error

    async def stop(self) -> None:
        """No new calls; those under way may take the drain timeout. May be called more than once."""
        if self._server is not None:
            await self._server.stop(self._config.drain_timeout / 1000)
        if self._service is not None:
            await self._service.close()
