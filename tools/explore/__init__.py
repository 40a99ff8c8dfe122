"""Every history of a small world, on the store in memory."""
