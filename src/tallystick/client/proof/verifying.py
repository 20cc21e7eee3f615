"""Who is asking: the signature of a broker, verified by the services that it calls."""

from __future__ import annotations

from typing import Any

from tallystick.client.proof.verifier import Verifier, needed


def verifying_interceptor(
    verifier: Verifier | None = None, *, aio: bool = False, methods: tuple[str, ...] = ("/",)
) -> Any:
    """An interceptor for a gRPC server that accepts the calls of a broker. All others end with
    UNAUTHENTICATED. For `grpc.server`, or with `aio` for `grpc.aio.server`. `methods` are the beginnings of those that
    only a broker may call, such as `/busi.Busi/`. Without a `verifier`, that of TALLYSTICK_SIGNING_KEYS_FILE."""
    from tallystick.client.proof.interceptors import LoopInterceptor, ThreadInterceptor  # late: few have grpc

    return (LoopInterceptor if aio else ThreadInterceptor)(needed(verifier), methods)
