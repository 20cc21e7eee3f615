"""How long to wait: doubling, capped, jittered."""
