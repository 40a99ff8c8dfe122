"""A user's mistakes with decorated tasks, each marked on its line: a checker reports these, and no others."""

from celery import Celery
from celery_redislock import SingletonTasks  # expect-error
from celery_redislock import DuplicateTask, SingletonTask
from celery_redislock.testing import hold, memory_locks
from celery_redislock.declaring.types import TaskOptions

app = Celery("shop")


@app.task(base=SingletonTask, bind=True)
def charge(self: SingletonTask, account_id: int) -> int:
    self.lease.chek()  # expect-error
    return self.lease.fence + account_id  # expect-error


@app.task(base=SingletonTask, **TaskOptions(lock="until_done"))  # expect-error
def sync_account(account_id: int) -> None: ...


@app.task(base=SingletonTask, **TaskOptions(lock_tll=3))  # expect-error
def remind(customer: str) -> None: ...


charge.dellay(42)  # expect-error
charge.delay(42).is_duplicated  # expect-error
charge.apply_async((42,), lock="until_done")  # expect-error
charge.apply_async((42,), on_conflict="queue")  # expect-error
charge.apply_async((42,), on_conflict={"publisher": "skip"})  # expect-error
charge.apply_async((42,), lock_ttl="x")  # expect-error
charge.apply_async((42,), lock_tll=3)  # expect-error
charge.apply_async((42,), on_lock_lost=print)  # expect-error
charge.apply_async((42,), countdown="soon")  # expect-error
charge.apply_async(42)  # expect-error
charge.lock_for(42).name  # expect-error
charge.lock_for(42).release()  # expect-error
charge.lock_for(42).release(reason=3)  # expect-error
charge.lock_for(42).release(reason="host died", only="running")  # expect-error
charge.lock_for(42).holder().owner  # expect-error
charge.lock_for(42).hold()  # expect-error
charge.lock_for(42).hold(reason="x", for_="1h")  # expect-error
charge.apply_async((42,), on_conflict="replace")  # expect-error
charge.apply_async((42,), lock_debounce="5s")  # expect-error
charge.apply_async((42,), lock_rate=10)  # expect-error

try:
    charge.delay(42)
except DuplicateTask as duplicate:
    duplicate.holder  # expect-error

with memory_locks("shop"):  # expect-error
    pass
with hold("charge", 42):  # expect-error
    pass
