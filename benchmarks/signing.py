"""What it costs to sign a call, and to verify it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.report import Figure
from benchmarks.run import Bench
from tallystick import Verifier
from tallystick.broker.outbound.signer import Signer
from tallystick.signing_keys import new_key_line

ROUNDS = 9
BODY = b"x" * 1_024
PATH = "/trans-in?gid=7f3a9c21-0199f3a2b4c6f2d0c4e9a1b3c5d7e8f&trans_type=msg&branch_id=01&op=action"
MOST_MICROSECONDS = 5.0


def signing(bench: Bench) -> None:
    """Microseconds of one core for a signature over a body of 1 KiB, with its nonce, time and look at the keys."""
    keys = bench.directory / "signing.keys"
    keys.touch(0o600)
    keys.write_text(f"{new_key_line()}\n")
    found = measure(keys, bench.count(50_000, 2_000))
    bench.report.add(Figure("sign a call, 1 KiB", found["sign"], "us", MOST_MICROSECONDS, True))
    bench.report.add(Figure("verify it, replays told", found["verify"], "us"))


def measure(keys: Path, count: int) -> dict[str, float]:
    signer, verifier = Signer(keys), Verifier(keys_file=keys, most_nonces=ROUNDS * count)
    signatures: list[str] = []

    def sign() -> None:
        signatures.extend([signer.signature("POST", "bank.internal:8080", PATH, BODY) for _ in range(count)])

    def verify() -> None:
        for signature in signatures[-count:]:
            verifier.verify(signature, "POST", PATH, BODY)

    took = [(_microseconds(sign, count), _microseconds(verify, count)) for _ in range(ROUNDS)]
    return {"sign": median(one for one, _ in took), "verify": median(one for _, one in took)}


def _microseconds(work: Callable[[], None], count: int) -> float:
    """Of processor time: other processes' turns are not counted."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e6
