"""Histories of one lock while faults are injected, and what they show."""
