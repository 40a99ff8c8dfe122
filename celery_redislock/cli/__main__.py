"""``python -m celery_redislock.cli`` is ``celery-redislock``."""

from celery_redislock.cli import main

if __name__ == "__main__":
    main()
