"""Django's settings; this package's are among Celery's."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-the-example")
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "examples.django_project.urls"
INSTALLED_APPS = [
    "examples.django_project",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # Before the admin's own: one of them adds a link to the locks.
        "DIRS": [Path(__file__).parent / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "db.sqlite3"),
        "OPTIONS": {"timeout": 30},
    }
}
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
CELERY_RESULT_BACKEND = os.environ.get("RESULT_URL", "redis://localhost:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

# Every setting of docs/options.md, in capitals, behind CELERY_.
CELERY_REDISLOCK_TTL = 20.0
CELERY_REDISLOCK_PREFIX = "bank"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    # As Celery's own lines, in the web server as in workers and beats.
    "formatters": {"dated": {"format": "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "dated"}},
    "loggers": {
        "django.request": {"handlers": ["console"], "level": "ERROR"},
        # One INFO line for each call that is skipped. Without this nobody sees why a button did nothing.
        "celery_redislock": {"handlers": ["console"], "level": "INFO", "propagate": False},
    },
}
