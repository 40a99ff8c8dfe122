"""Every hook of Celery and kombu that this package has, watched while it is called in real processes.

- ``reflection``: finds the hooks; ``watch``: notes their calls.
- ``table``: which hook is called in which process, and which ones a run calls however it ends.
- ``ends``: brings the ends about; ``publisher``: a program that publishes.
"""
