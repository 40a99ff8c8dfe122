"""``celery-redislock demo``: six promises, kept in front of your eyes by a real worker.

::

    app       the Celery app and its tasks, as a user would write them
    records   what the tasks write down while they run, and what follows from it
    promises  each scene's expectation, and the verdict on what was seen
    scenes    publishes, kills, waits; returns facts
    worker    the worker's process, which dies with the demo
    stage     server, worker and tidying up
    show      the running commentary, the table, the exit status
"""

__all__: list[str] = []
