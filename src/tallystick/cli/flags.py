"""The flags of `tallystick serve`: one for every setting of the broker, made from its Config."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from tallystick.broker.config import TABLES, Config, is_duration
from tallystick.cli.times import duration

HELP = {
    "data_dir": "Directory that holds everything; made if it is missing, used by one broker at a time.",
    "store": "Engine: rocksdb (on disk), memory (gone with the process), or the address of a server that the brokers "
    "of a cluster share: postgresql://, mysql://, redis://. Keep passwords in the file or the environment.",
    "host": "Address to listen on.",
    "port": "Port to listen on; 0 picks a free one.",
    "grpc": "Speak gRPC as well, in dtm's manner.",
    "grpc_port": "Port to listen on for gRPC; 0 picks a free one.",
    "tls_cert": "PEM file with the certificate, and those between it and its CA: HTTP and gRPC are spoken over TLS.",
    "tls_key": "PEM file with the key of that certificate, without a password.",
    "tls_client_ca": "PEM file with the CAs of clients: they are asked for a certificate, and it is verified.",
    "tls_client_required": "Take no client without such a certificate.",
    "tls_ca": "PEM file with the CAs of the other brokers of a cluster; none: those that the system trusts.",
    "certificates": "What clients may do by the names in their certificates, [[certificates]] in the file only.",
    "head_timeout": "How long the head of a request may take, or the first one after a connection was made.",
    "body_timeout": "How long a client may send nothing of a body, which then needs 1 KiB/s. gRPC: for a message.",
    "idle_timeout": "How long a connection is kept that nobody uses.",
    "handshake_timeout": "How long a client may take to begin TLS.",
    "max_connections": "Most connections, to the HTTP port and to the gRPC port.",
    "max_connections_per_address": "Most connections (HTTP) and calls (gRPC) of one address; of IPv6 of a /64 network.",
    "stores": "Stores of a cluster, said when it is made; 0: as it was made, or 8.",
    "advertise": "Address under which the other brokers and the clients of a cluster reach this one.",
    "advertise_grpc": "The same for gRPC, host:port.",
    "lease": "How long a broker of a cluster may be silent before the others take its stores over.",
    "allow_weak_durability": "Use a server that may lose what it has acknowledged.",
    "auth": "Who may do what: off (whoever reaches the port may do everything), or tokens.",
    "allow_open": "Listen on other addresses than loopback even though whoever reaches them may do everything.",
    "browser_hosts": "Names, beside localhost, by which browsers may ask this broker without a token.",
    "static_tokens": "Tokens besides those that the store keeps, [[static_tokens]] in the file only.",
    "address_grants": "What requests without a token may do, by their addresses; [[address_grants]] in the file only.",
    "max_message_bytes": "Largest value of a message, in bytes.",
    "max_request_bytes": "Largest request, in bytes.",
    "max_transaction_messages": "Most messages in one transaction.",
    "max_topics": "Most topics.",
    "max_groups": "Most consumer groups, and most groups and hosts that check-backs go to.",
    "max_queues_per_topic": "Most queues of one topic.",
    "max_waiting_bytes": "Bytes of requests that wait for the writer before new ones are refused as busy.",
    "max_long_polls": "Most requests that wait for something to happen.",
    "min_free_bytes": "Free disk space, in bytes, below which new messages are refused.",
    "auto_create_topics": "Make a topic when it is first sent to or received from.",
    "default_queues": "Queues of a topic that does not say how many.",
    "retention": "How long messages are kept.",
    "dedup_retention": "How long resolved gids are remembered.",
    "part_ttl": "How long a part waits to be claimed by a commit.",
    "audit_retention": "How long the audit log is kept.",
    "max_attempts": "Deliveries of a message before it goes to the dead-letter topic.",
    "redelivery_first": "Wait before the second delivery of a message; doubles from then on.",
    "redelivery_cap": "Longest wait between two deliveries of a message.",
    "max_leased": "Most messages of a queue that one group holds under lease.",
    "check_after": "Age at which a prepared transaction is checked for the first time.",
    "check_interval": "Wait between the first and the second check; doubles from then on.",
    "check_interval_cap": "Longest wait between two checks.",
    "check_timeout": "How long the answer to a check may take.",
    "max_checks": "Checks before a transaction counts as exhausted.",
    "on_exhausted": "What happens to an exhausted transaction: park or rollback.",
    "max_pending_age": "Age at which a transaction that nobody can be asked about is parked.",
    "checks_per_target": "Most checks under way for one URL host.",
    "allow_unchecked": "Take a prepare that names nobody to ask, and commit it when its time is up, as dtm does.",
    "call_timeout": "How long a service may take to answer a call that does not say otherwise.",
    "call_retry_first": "Wait before the second attempt of a call; doubles from then on.",
    "call_retry_cap": "Longest wait between two attempts of a call.",
    "call_max_attempts": "Attempts before a call is parked.",
    "call_alert_after": "Failed attempts of a call after which the alert URL is told.",
    "calls_per_host": "Most calls under way to one host and port.",
    "calls_in_flight": "Most calls under way to all hosts together.",
    "call_breaker_failures": "Calls in a row that do not reach a host before it counts as down and is only probed.",
    "call_probe": "Wait before a host that is down is probed for the first time; doubles from then on.",
    "call_probe_cap": "Longest wait between two probes.",
    "allowed_urls": "Addresses the broker may call, comma separated; * stands for any port or a part of a host name.",
    "databases": "Databases the broker may check in: name=dsn, comma separated. Others on this machine can read "
    "a process's flags: keep passwords in the file or the environment.",
    "barrier_table": "Name of the barrier table in those databases.",
    "alert_url": "Address that is told of parked transactions, conflicts, dead letters, failing calls; empty for none.",
    "signing_keys_file": "File of keys, one `id secret` a line, the first of which signs every call, check-back and "
    "alert; read again when it changes.",
    "jwt_issuer": "Who issues the JWTs that are accepted: their claim iss.",
    "jwt_audience": "What these must be meant for: their claim aud.",
    "jwt_jwks": "Keys that verify them: a JWKS file, or its https:// address; both are read again.",
    "jwt_ca": "PEM file with the CAs of that address; none: those that the system trusts. Read again with each fetch.",
    "jwt_name_claim": "Claim that names who somebody is.",
    "jwt_grants": "What a claim of a JWT permits, [[jwt_grants]] in the file only.",
    "drain_timeout": "How long accepted work may take to finish when the broker is told to end.",
    "log_level": "Least important kind of log lines that are written.",
    "log_format": "text for people, json for programs.",
}


def with_config_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command(**flags)` with a signature that has a flag for every setting that is no table, besides the command's own
    options."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    made = [_parameter(one) for one in msgspec.structs.fields(Config) if one.name not in TABLES]

    @functools.wraps(command)
    def flagged(**given: Any) -> None:
        command(**given)

    flagged.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    flagged.__annotations__ = {one.name: one.annotation for one in [*own, *made]}
    return flagged


def _parameter(field: msgspec.structs.FieldInfo) -> inspect.Parameter:
    flag = field.name.replace("_", "-")
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    switch = isinstance(default, bool)
    option = typer.Option(
        f"--{flag}/--no-{flag}" if switch else f"--{flag}",
        help=f"{HELP[field.name]} [default: {_shown(field, default)}]",
        metavar=None if switch else _metavar(field),
        show_default=False,
    )
    # None means "not given": the environment and the file come next, and load_config judges all of them alike.
    kind: Any = Annotated[bool | None if switch else str | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _metavar(field: msgspec.structs.FieldInfo) -> str:
    if get_origin(field.type) is Literal:
        return "|".join(get_args(field.type))
    if is_duration(field.name):
        return "DURATION"
    return "TEXT" if field.type is str or get_origin(field.type) in (list, dict) else "NUMBER"


def _shown(field: msgspec.structs.FieldInfo, default: Any) -> str:
    if is_duration(field.name):
        return duration(default)
    if isinstance(default, list):
        return ",".join(default) or "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if default not in ("", {}) else "none"
