"""The story: see the README beside it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from examples.on_conflict.shop import TASKS, app
from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

#: Seconds anything may take.
PATIENCE = 30.0
ROW = "  {:9} | {:34} | {:28} | {}"

#: By task: what delay() gets, what becomes of the message that only the worker sees, how many bodies run.
EXPECTED = {
    "skipping": ("the holder's result", "TaskRevokedError", 1),
    "raising": ("DuplicateTask", "DuplicateTask", 1),
    "retrying": ("a result of its own: invoice 7", "invoice 7", 3),
    "asking": ("the holder's result", "invoice 7", 2),
    "by_side": ("DuplicateTask", "TaskRevokedError", 1),
}


@dataclass
class Row:
    """What became of three calls of one task.

    Attributes:
        task: the task.
        holder: result of the first call, which is running.
        second: result of the second call, or what it raised.
        sent: result of a message that was published without a look at the lock.
    """

    task: Any
    holder: Any
    second: Any = None
    sent: Any = None

    @property
    def name(self) -> str:
        return str(self.task.name.rpartition(".")[2])

    def seen(self, here: Stage) -> tuple[str, str, int]:
        """Return what is to be compared with ``EXPECTED``, once everything has ended."""
        outcomes = self._second(), outcome(self.sent)
        return *outcomes, len(here.lines(f"{self.name}: ", " begins"))

    def _second(self) -> str:
        if isinstance(self.second, DuplicateTask):
            return type(self.second).__name__
        if self.second.is_duplicate and self.second.id == self.holder.id:
            return "the holder's result"
        return f"a result of its own: {outcome(self.second)}"


def main() -> None:
    """Put every strategy into the same situation, and print a table."""
    with stage(app) as here:
        printer = Path(here.directory, "printer-is-busy")
        printer.touch()
        os.environ["PRINTER_IS_BUSY"] = str(printer)
        here.worker(concurrency=len(TASKS) + 1)
        compare(here, printer)


def compare(here: Stage, printer: Path) -> None:
    rows = call_three_times(here)
    here.say("The printer is free: the holders end, and what waits has its turn.")
    printer.unlink()
    judge(here, rows)


def call_three_times(here: Stage) -> list[Row]:
    here.say("Invoice 7 is asked for, once of each task. All begin, and keep running.")
    rows = [Row(task, task.delay(7)) for task in TASKS]
    began = wait_until(lambda: len(here.lines(" begins")) == len(TASKS), PATIENCE)
    here.expect(f"{len(TASKS)} bodies are running", began)
    here.say("Each is asked for once more, with delay(): the publisher sees the lock.")
    for row in rows:
        row.second = called(row.task)
    here.say("And once more by name, with send_task(): only the worker sees the lock.")
    for row in rows:
        # What is urgent decides for the callable; the others do not look.
        row.sent = app.send_task(row.task.name, (7,), {"urgent": True})
    decided = wait_until(lambda: all(is_decided(here, row.sent) for row in rows), PATIENCE)
    here.expect("the worker has refused each of these messages while the holders run", decided)
    return rows


def called(task: Any) -> Any:
    """Call it, and return the result or the error."""
    try:
        return task.delay(7)
    except DuplicateTask as error:
        return error


def is_decided(here: Stage, sent: Any) -> bool:
    """Whether a message has a final state, or the worker has written that it waits."""
    return bool(sent.ready() or here.lines(f"[{sent.id}] waits: "))


def judge(here: Stage, rows: list[Row]) -> None:
    seen = {row.name: row.seen(here) for row in rows}
    here.say("")
    here.say(ROW.format("task", "delay() while another runs", "send_task() while it runs", "bodies"))
    for row in rows:
        second, sent, bodies = seen[row.name]
        here.say(ROW.format(row.name, second, f"{row.sent.state}: {sent}", bodies))
    here.say("")
    for row in rows:
        here.expect(
            f"{row.name}: {' | '.join(map(str, seen[row.name]))}", seen[row.name] == EXPECTED[row.name]
        )
    for row in rows:
        if isinstance(row.second, DuplicateTask):
            here.expect(f"{row.name}: the error names the holder", row.second.task_id == row.holder.id)
    here.expect("no two bodies of a task were ever on at once", all(alternate(here, row) for row in rows))
    for row in rows:
        row.holder.get(timeout=PATIENCE)  # its lock is released before its result is seen
    here.expect("every lock is free", all(row.task.lock_for(7).holder() is None for row in rows))


def outcome(result: Any) -> str:
    """Wait for a result; return what it says, or the name of its error."""
    try:
        return str(result.get(timeout=PATIENCE))
    except (DuplicateTask, TaskRevokedError) as error:
        return type(error).__name__


def alternate(here: Stage, row: Row) -> bool:
    """Whether each body had ended before the next one began: the lines stand in the order of time."""
    ends = [line.rpartition(" ")[2] for line in here.lines(f"{row.name}: ")]
    return ends == ["begins", "ends"] * (len(ends) // 2)


if __name__ == "__main__":
    main()
