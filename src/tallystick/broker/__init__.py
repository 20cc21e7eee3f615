"""The broker's engine: group commit, long polls, check-back, sweeps, metrics. No protocol of the outside."""
