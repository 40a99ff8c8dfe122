"""Other libraries' names on this engine, so that a project moves by one import line.

Each module has the name of the library it stands for::

    from celery_redislock.compat.celery_singleton import Singleton, DuplicateTaskError, clear_locks
    from celery_redislock.compat.celery_once import QueueOnce, AlreadyQueued

What a task so declared does differently is listed in docs/migrating.md. A ``DeprecationWarning`` gives the
options to write in its place, once per task.
"""
