"""Everyday scenarios, played with this package and with others that make Celery tasks unique."""

__all__: list[str] = []
