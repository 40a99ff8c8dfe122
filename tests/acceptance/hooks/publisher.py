"""A program that publishes, and does with results what programs do; run with a project's plan."""

import pickle

from tests.acceptance.project import app
from tests.acceptance.terms import PATIENCE


def publish(key: str) -> None:
    """Publish and wait; run in place."""
    task = app.tasks["project.executed"]
    result = task.delay(key)
    result.get(timeout=PATIENCE)
    result.maybe_reraise()
    repr(pickle.loads(pickle.dumps(result)))  # noqa: S301  its own
    repr(pickle.loads(pickle.dumps(task.apply((key,)))))  # noqa: S301


if __name__ == "__main__":
    publish("published")
