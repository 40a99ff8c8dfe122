"""Write the reference page: ``python -m celery_redislock.options docs/options.md``."""

import sys
from pathlib import Path

from celery_redislock.options.reference import reference_page

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Write the page to the one path given.

    Raises:
        SystemExit: not exactly one path was given.
    """
    if len(arguments) != 1:
        raise SystemExit("usage: python -m celery_redislock.options PATH")
    Path(arguments[0]).write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
