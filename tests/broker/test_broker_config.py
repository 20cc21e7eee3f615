"""Configuration: where a setting comes from, and what is said of a wrong one."""
