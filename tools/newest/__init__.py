"""Runs the tests with the versions that users have, from the oldest to the newest, and keeps what was run."""
