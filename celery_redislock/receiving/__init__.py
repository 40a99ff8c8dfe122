"""The worker's main process: it mints tokens, renews, and releases for a dead child."""
