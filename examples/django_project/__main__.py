"""Run the project on a database and a server of its own: ``python -m examples.django_project``."""

import os
import tempfile
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Name the database before Django's settings are read, here and in the worker."""
    with tempfile.TemporaryDirectory(prefix="redislock-example-") as folder:
        bank = Path(folder) / "bank"
        bank.mkdir()
        os.environ.update(DATABASE=f"{folder}/db.sqlite3", BANK=str(bank))
        # wsgi.py calls django.setup(): models can be imported after it.
        from examples.django_project import wsgi  # noqa: F401, PLC0415
        from examples.django_project.story import play  # noqa: PLC0415

        play(bank)


if __name__ == "__main__":
    main()
