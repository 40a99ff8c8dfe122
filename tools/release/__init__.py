"""Builds what a release uploads: an sdist and a wheel with addresses, from a clean copy of HEAD."""
