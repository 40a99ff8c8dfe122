"""What a message that waits will say when its turn has come."""

import json

from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.publishing.turn import facts_of_turn
from celery_redislock.store.memory import MemoryStore


def test_what_is_told_of_the_arguments_ends_what_it_will_say() -> None:
    """The scripts copy the end of it to the run; that it waited is not to be copied."""
    lives = (30.0, 3600.0, None, None, Says())
    lock = TaskLock(MemoryStore(), "shop.sync", *lives, "account:7", "t1", told=',"args":"0a1b"')
    facts = facts_of_turn(lock)
    assert facts.endswith(',"args":"0a1b"}')
    assert json.loads(facts)["line"] == 1
