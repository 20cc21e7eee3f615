"""The tallystick command line."""
