"""The jobs that need the whole history. Each is a function of a Spark session, and a `tallystick spark` command."""
