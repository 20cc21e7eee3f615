"""Settings that hold for all tests."""

from hypothesis import settings

# Time limits are pytest-timeout's business; how long one example takes depends on the machine.
settings.register_profile("tallystick", deadline=None)
settings.load_profile("tallystick")
