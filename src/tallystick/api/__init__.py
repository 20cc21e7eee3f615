"""How the outside speaks to the broker: each protocol a thin translation to the same engine."""

from tallystick.extras import need

need("server")
