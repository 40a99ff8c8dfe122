"""The worker's main process: it mints tokens, renews, and settles for a dead child."""
