"""The flags of `tallystick serve`: one for every setting of the broker, made from its Config."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from tallystick.broker.config import Config
from tallystick.cli.times import duration

HELP = {
    "data_dir": "Directory that holds everything; made if it is missing, used by one broker at a time.",
    "store": "Engine: rocksdb (on disk), memory (gone with the process), or the address of a server that the brokers "
    "of a cluster share: postgresql://, mysql://, redis://. Keep passwords in the file or the environment.",
    "host": "Address to listen on.",
    "port": "Port to listen on; 0 picks a free one.",
    "grpc": "Speak gRPC as well, in dtm's manner.",
    "grpc_port": "Port to listen on for gRPC; 0 picks a free one.",
    "stores": "Stores of a cluster, said when it is made; 0: as it was made, or 8.",
    "advertise": "Address under which the other brokers and the clients of a cluster reach this one.",
    "advertise_grpc": "The same for gRPC, host:port.",
    "lease": "How long a broker of a cluster may be silent before the others take its stores over.",
    "allow_weak_durability": "Use a server that may lose what it has acknowledged.",
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
    "drain_timeout": "How long accepted work may take to finish when the broker is told to end.",
    "log_level": "Least important kind of log lines that are written.",
    "log_format": "text for people, json for programs.",
}


def with_config_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command(**flags)` with a signature that has a flag for every setting, besides the command's own options."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    made = [_parameter(one) for one in msgspec.structs.fields(Config)]
    command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*own, *made]}
    return command


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


def _is_duration(field: msgspec.structs.FieldInfo) -> bool:
    return str(Config.__annotations__[field.name]) == "Duration"


def _metavar(field: msgspec.structs.FieldInfo) -> str:
    if get_origin(field.type) is Literal:
        return "|".join(get_args(field.type))
    if _is_duration(field):
        return "DURATION"
    return "TEXT" if field.type is str or get_origin(field.type) in (list, dict) else "NUMBER"


def _shown(field: msgspec.structs.FieldInfo, default: Any) -> str:
    if _is_duration(field):
        return duration(default)
    if isinstance(default, list):
        return ",".join(default)
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if default != "" and default != {} else "none"
