"""A Django project of one app: the app is made here, so that ``@shared_task`` finds it."""

from examples.django_project.celery import app as celery_app

__all__ = ["celery_app"]
