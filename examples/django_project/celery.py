"""The Celery app, configured by what begins with ``CELERY_`` in Django's settings."""

import os

from celery import Celery

__all__ = ["app"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_project.settings")

app = Celery("examples.django_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
