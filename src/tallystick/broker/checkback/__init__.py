"""Check-back: the broker asks the producer's side for outcomes, by group, by URL, or at the database itself."""
