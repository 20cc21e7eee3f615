"""The seed of a random test: new for each run, printed, and given again with FAULT_SEED to repeat its schedule."""

from __future__ import annotations

import os
import random


def chosen_seed() -> int:
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"FAULT_SEED={seed}")
    return seed
