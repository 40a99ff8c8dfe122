"""Several resources of one task: it holds all of them while it runs, or none."""

from celery_redislock.exceptions import LockOptionError


class Resources(tuple[str, ...]):
    """``lock_key`` of a task that runs alone on several resources at once.

    ::

        @app.task(base=SingletonTask, lock="while_executing",
                  lock_key=Resources("account:{source}", "account:{target}"))
        def transfer(source, target, amount): ...

    Each text names a resource, as a ``lock_key`` that is one text does, so this task excludes those that lock
    one of them alone. All are taken in one step, whatever their order; a run that waits holds none of them.
    For the scope ``while_executing``, on one Redis or Valkey server.
    """

    __slots__ = ()

    def __new__(cls, *names: str) -> "Resources":
        """Name them, by texts with the task's parameters in braces.

        Raises:
            LockOptionError: none is named, or one is no text.
        """
        if not names or not all(isinstance(name, str) for name in names):
            problem = f"{names!r}: name each by a text, as in Resources('account:{{a}}', 'account:{{b}}')"
            raise LockOptionError("Resources", [problem])
        return super().__new__(cls, names)

    def __getnewargs__(self) -> tuple[str, ...]:
        """For copies and pickles."""
        return tuple(self)

    def __repr__(self) -> str:
        """As it was written."""
        return f"Resources({', '.join(map(repr, self))})"
