"""The ways people write tasks."""

from typing import Any

from celery import Celery

__all__ = ["declare_kinds"]


def declare_kinds(app: Celery) -> list[Any]:
    """Declare them on this app."""
    return []
