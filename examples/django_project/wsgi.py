"""What a web server serves."""

import os

from django.core.wsgi import get_wsgi_application

__all__ = ["application"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_project.settings")

application = get_wsgi_application()
