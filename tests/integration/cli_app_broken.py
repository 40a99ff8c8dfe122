"""The app where one of its modules cannot be imported, as on a host without all its dependencies."""

from tests.integration.cli_app import app

app.conf.include = ["tests.integration.no_such_module"]
