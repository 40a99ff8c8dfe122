"""``python -m celery_redislock.cli`` is ``celery-redislock``."""

from celery_redislock.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
