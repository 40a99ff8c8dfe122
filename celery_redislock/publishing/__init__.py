"""The caller's process: claim the key, publish the message, decide about a duplicate."""
