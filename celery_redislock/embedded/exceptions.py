"""What can go wrong with a server of one's own."""

from celery_redislock.exceptions import RedisLockError

__all__ = ["EmbeddedServerError"]


class EmbeddedServerError(RedisLockError):
    """The embedded server could not be found, started or reached.

    Attributes:
        problem: what happened, with what values, and what to do.
        output: the last lines the server wrote, ``""`` if it wrote none.
    """

    def __init__(self, problem: str, output: str = "") -> None:
        super().__init__(problem, output)
        self.problem = problem
        self.output = output

    def __str__(self) -> str:
        return f"{self.problem}; its last words:\n{self.output}" if self.output else self.problem
