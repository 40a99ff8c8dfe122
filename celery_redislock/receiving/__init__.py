"""The worker's main process: it knows each run's token, renews beside the child, and settles for a dead one."""
