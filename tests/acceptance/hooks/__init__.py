"""Every hook of Celery and kombu that this package has, watched while it is called in real processes.

- ``reflection``: finds the hooks; ``watch``: notes their calls.
- ``table``: which hook is called in which process; ``publisher``: a program that publishes.
"""
