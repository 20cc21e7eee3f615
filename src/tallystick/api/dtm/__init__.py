"""dtm's protocol for two-phase messages (`trans_type = msg`), translated to the broker's own operations."""
