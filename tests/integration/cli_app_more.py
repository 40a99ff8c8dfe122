"""A module the app only includes: nobody has imported it when a command starts."""

from celery import shared_task

from celery_redislock import SingletonTask


@shared_task(base=SingletonTask, name="shop.included")
def included(number: int) -> None:
    """Be known only after the app's loader has imported this module."""
