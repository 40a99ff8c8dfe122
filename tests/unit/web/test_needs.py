"""What the page says needs somebody: when it is so, and only then."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock import SingletonTask
from celery_redislock.receiving.whereabouts import Idle
from celery_redislock.web import sampler
from celery_redislock.web.around import as_now
from tests.unit.shop import Shop, body, raising
from tests.unit.web.site import COMMAND, Site, entry, holder, line, written

Tell = Callable[..., None]


def headless(site: Site, *, is_headless: bool = True, **more: Any) -> None:
    site.sampler.around.workers = more.pop("workers", {})
    keys = frozenset({"k"} if is_headless else ())
    site.show(lines=[line()], free=frozenset("k"), headless=keys, **more)


def unserved(site: Site, **more: Any) -> None:
    headless(site, unserved={"k": "amqp://old"}, **more)


def served(site: Site, **more: Any) -> None:
    headless(site, workers=WORKERS, **more)


def dead(site: Site, *, remaining: float) -> None:
    site.show(holder(remaining=remaining), lines=[line()])


def foreign(site: Site, *, state: str) -> None:
    site.show(holder(state=state, owner="1234567890", task=None, ttl=None), lines=[line()])


def full(site: Site, *, length: int) -> None:
    options = {"base": SingletonTask, "lock_max_waiting": 3, "name": "shop.sync", "shared": False}
    site.app.task(lazy=False, **options)(body)
    site.show(holder(), lines=[line(length=length)])


def queued(site: Site, *, age: float = 90.0, workers: Any = None, queues: Any = ()) -> None:
    around = site.sampler.around
    around.workers = workers or {}
    around.queues = queues
    site.show(holder(state="queued", owner="t1", age=age))


def idle(site: Site, *, ids: Any = ("t0", "t1"), **more: Any) -> None:
    queued(site, workers=WORKERS, queues=[Idle("mail", 9, ids)], **more)


def scheduled(site: Site, *, sending_for: float | None = None, **more: Any) -> None:
    since = None if sending_for is None else time.time() - sending_for
    site.sampler.around.entries = as_now([entry(sending_since=since, **more)])


def skips(in_a_row: int) -> dict[str, Any]:
    return {"at": time.time(), "task_id": "t1", "state": "running", "held_for": 9.0, "in_a_row": in_a_row}


def found(site: Site, *, level: str) -> None:
    site.sampler.around.findings = [("ok", "all is well"), (level, "it may be evicted")]


FREE = f"{COMMAND} release --reason TEXT -- k"
DRAIN = f"{COMMAND} waiting --drain --home k"
EXPLAIN = f"{COMMAND} explain -- k"
OF_TASK = f"{COMMAND} explain -- shop.sync"
WORKER = "celery -A shop worker -Q mail"
DOCTOR = f"{COMMAND} doctor"
WORKERS = {"w@a": frozenset[str]()}

STILL = "line stands still"
LONG = "queued for long"


@pytest.mark.parametrize(
    ("tell", "so", "otherwise", "kind", "words", "command"),
    [
        (dead, {"remaining": 1.0}, {"remaining": 29.0}, "dead holder", "not renewed for 29.0 s", FREE),
        (dead, {"remaining": 1.0}, {"remaining": 29.0}, "dead holder", "; 3 wait behind it", FREE),
        (unserved, {}, {"is_headless": False}, STILL, "the first belongs to the broker amqp://old", DRAIN),
        (headless, {}, {"is_headless": False}, STILL, "no worker answers: start one", EXPLAIN),
        (served, {}, {"is_headless": False}, STILL, "no worker hands the lock to the first", EXPLAIN),
        (foreign, {"state": "foreign"}, {"state": "hold"}, "foreign lock", "another program's lock", FREE),
        (foreign, {"state": "foreign"}, {"state": "hold"}, "foreign lock", "3 wait behind it; release", FREE),
        (full, {"length": 3}, {"length": 2}, "line is full", "as many as lock_max_waiting lets", EXPLAIN),
        (queued, {}, {"age": 9.0}, LONG, "1 call, shop.sync for 0:01:30; no worker answers", EXPLAIN),
        (queued, {}, {"workers": WORKERS}, LONG, "no worker answers: start one", EXPLAIN),
        (idle, {}, {"age": 9.0}, LONG, "shop.sync for 0:01:30; 9 messages lie in the queue mail", WORKER),
        (idle, {}, {"ids": ("t8", "t9")}, LONG, "which no worker consumes", WORKER),
        (idle, {"ids": ()}, {"age": 9.0}, LONG, "9 messages lie in the queue mail", WORKER),
        (scheduled, {"last_skip": skips(2)}, {"last_skip": skips(1)}, "schedule", "2 skipped in a", OF_TASK),
        (scheduled, {"next_due": 1.0}, {"next_due": 1.0, "paused": True}, "schedule", "overdue", OF_TASK),
        (scheduled, {"sending_for": 61.0}, {"sending_for": 9.0}, "schedule", "sending since", OF_TASK),
        (found, {"level": "warning"}, {"level": "note"}, "set-up", "it may be evicted", DOCTOR),
        (found, {"level": "error"}, {"level": "ok"}, "set-up", "it may be evicted", DOCTOR),
    ],
)
def test_a_need_is_told_with_its_reason_and_what_to_type_when_it_is_so_and_only_then(
    site: Site, tell: Tell, so: Any, otherwise: Any, kind: str, words: str, command: str
) -> None:
    tell(site, **otherwise)
    assert site.rows("needs") == []
    assert "nothing: no dead holder" in site.get("needs").parsed.text
    tell(site, **so)
    [need] = site.rows("needs")
    assert (need["kind"], need["command"]) == (kind, command)
    assert words in need["told"]
    for view in ("", "needs"):
        [cells] = site.get(view).parsed.rows["needs"]
        assert cells[0] == kind
        assert words in cells[2]
        assert cells[2].endswith(command)


def test_nothing_needs_somebody_only_when_all_of_it_is_known(site: Site) -> None:
    """What nobody has answered yet is told beside the rows, or instead of them; for programs, too."""
    around = site.sampler.around
    around.asked = {"tasks", "schedule"}
    around.troubles = {"schedule": "it cannot be read"}
    told = "not known yet: the schedule, the workers, the set-up; load this page again"
    for rows, each in enumerate(((), (holder(remaining=1.0),))):
        site.show(*each)
        for view in ("", "needs"):
            page = site.get(view).parsed
            assert told in page.text
            assert "nothing: no dead holder" not in page.text
            assert len(page.rows.get("needs", ())) == rows
    assert site.get("needs.json").document["unknown"] == ["the schedule", "the workers", "the set-up"]
    assert site.get("index.json").document["schedule"]["unknown"] == ["the schedule"]


def test_whether_lines_stand_still_is_known_after_two_looks(site: Site) -> None:
    """Unless the first one has seen no line that nobody holds."""
    site.sampler.first = None
    site.show(lines=[line()], free=frozenset("k"))
    assert "not known yet: whether lines stand still; load" in site.get("needs").parsed.text
    site.show(lines=[line()], free=frozenset("k"))
    assert "nothing: no dead holder" in site.get("needs").parsed.text
    site.sampler.first = None
    site.show(holder(), lines=[line()])
    assert "nothing: no dead holder" in site.get("needs").parsed.text


def test_of_a_queue_without_a_consumer_the_oldest_call_counts(site: Site) -> None:
    """One that was queued a moment ago may lie before it, with a higher priority."""
    around = site.sampler.around
    around.workers = WORKERS
    around.queues = [Idle("mail", 2, ("new", "old"))]
    site.show(*(holder(name, "queued", owner=name, age=age) for name, age in (("new", 1.0), ("old", 90.0))))
    [need] = site.rows("needs")
    assert (need["kind"], need["subject"]) == (LONG, "old")


def test_a_full_line_is_told_however_many_are_longer(site: Site) -> None:
    full(site, length=3)
    longer = [line(f"k{number}", 9, task="shop.other") for number in range(150)]
    site.show(lines=[*longer, line("full", 3)])
    assert [need["subject"] for need in site.rows("needs")] == ["full"]


def test_of_a_foreign_lock_is_told_what_it_says_of_itself(site: Site) -> None:
    """And the beginning of its value, from which one may know it."""
    site.show(holder(state="foreign", owner="nightly.sh on web-9", ttl=None))
    [need] = site.rows("needs")
    assert need["told"] == (
        "another program's lock, whose value begins with 'nightly.…', shop.sync, on web-1:7, for 0:01:30, "
        "free in 29.0 s; release it if that program is gone"
    )


def test_an_entry_behind_many_healthy_ones_is_told(site: Site) -> None:
    """What is bounded is what is told, not what is looked at."""
    site.sampler.around.entries = as_now([*[entry()] * 200, *[entry(last_skip=skips(2))] * 200])
    site.show()
    assert len(site.rows("needs")) == 100


def test_a_line_stands_still_when_two_looks_in_a_row_find_it_free(site: Site) -> None:
    """After one look the release that hands it on may just be under way."""
    store = site.store
    for key in ("free", "held", "later", "on hold", "foreign"):
        store.acquire(key, f"{key}/1", 900.0 if key == "held" else 30.0, facts='{"state":"running"}')
    site.wait_by_hand("free")
    site.wait_by_hand("held")
    site.wait_by_hand("later", due=int((time.time() + 600.0) * 1000))
    site.wait_by_hand("on hold", "operator ann", state="hold")
    site.wait_by_hand("foreign")
    store.let_pass(31.0)
    store._keep("foreign", b"1234567890", 900.0)
    site.sampler._look()
    assert [need["kind"] for need in site.rows("needs")] == ["foreign lock"]
    assert site.sampler.last.free == {"free"}
    site.sampler._look()
    stands_still, _ = site.rows("needs")
    assert (stands_still["kind"], stands_still["subject"]) == ("line stands still", "free")
    store.acquire("free", "again/1", 900.0, facts='{"state":"running"}', instead_of="first/1")
    site.sampler._look()
    assert site.sampler.last.headless == set()


def free_to_start(site: Site, *keys: str, **facts: Any) -> None:
    """Let the first in the lines of these locks wait, and nobody hold them."""
    for key in keys:
        site.store.acquire(key, f"{key}/1", 30.0, facts='{"state":"running"}')
        site.wait_by_hand(key, **facts)
    site.store.let_pass(31.0)


def told_to_stand_still(site: Site) -> list[str]:
    """Look twice."""
    for _ in range(2):
        site.sampler._look()
    return [need["subject"] for need in site.rows("needs") if need["kind"] == STILL]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is on no list a look asks about one key."""
    monkeypatch.setattr(sampler, "MOST_BESIDES", 1)


@pytest.mark.usefixtures("one_by_one")
def test_of_what_was_not_asked_it_is_not_said_that_it_stands_still(site: Site) -> None:
    """Locks of other programs, and rates, of more lines than a look asks about."""
    free_to_start(site, "a", "b")
    for key in "ab":
        site.store._keep(key, b"1234567890", 900.0)
    assert told_to_stand_still(site) == []


@pytest.mark.usefixtures("one_by_one")
def test_what_waits_for_rates_does_not_stand_still_however_many_they_are(site: Site) -> None:
    facts = {"state": "running", "task": "shop.sync", "rate": "1/3600000"}
    for key in "ab":
        site.store.acquire(key, f"{key}/1", 30.0, facts=written(facts), starts_run=True)
        site.wait_by_hand(key, rate=facts["rate"])
        site.store.release(key, f"{key}/1")
    assert told_to_stand_still(site) == []


@pytest.mark.usefixtures("one_by_one")
def test_lines_that_wait_for_a_time_leave_room_for_one_that_stands_still(site: Site) -> None:
    due = int((time.time() + 600.0) * 1000)
    free_to_start(site, "a", "b", due=due)
    free_to_start(site, "c")
    assert told_to_stand_still(site) == ["c"]


def test_when_the_first_is_due_the_lock_server_s_clock_says(site: Site) -> None:
    site.store.ahead = -900.0
    free_to_start(site, "a", due=int((time.time() - 600.0) * 1000))
    assert told_to_stand_still(site) == []


def test_who_is_not_the_first_for_another_lock_that_it_needs_lets_no_line_stand_still(site: Site) -> None:
    """Nor one whose other lock another program holds."""
    free_to_start(site, "a", names=["a", "b"])
    free_to_start(site, "c", names=["c", "d"])
    site.wait_by_hand("b", "other", due=int((time.time() + 600.0) * 1000))
    site.store._keep("d", b"1234567890", 900.0)
    assert told_to_stand_still(site) == []


@pytest.mark.parametrize(("names", "stands_still"), [(["a", "b"], []), (["a", "c"], ["a"]), (7, ["a"])])
def test_a_line_whose_first_waits_for_another_lock_as_well_does_not_stand_still(
    site: Site, names: Any, stands_still: list[str]
) -> None:
    for key in "ab":
        site.store.acquire(key, f"{key}/1", 30.0 if key == "a" else 900.0, facts='{"state":"running"}')
    site.wait_by_hand("a", names=names)
    site.store.let_pass(31.0)
    for _ in range(2):
        site.sampler._look()
    assert [need["subject"] for need in site.rows("needs")] == stands_still
    [cells] = site.get("lines").parsed.rows["lines"]
    assert cells[-1] == (f"also waits for {names[1]}" if isinstance(names, list) else "-")


def test_a_line_whose_rate_has_had_its_starts_does_not_stand_still(site: Site) -> None:
    """The page says when the next place opens."""
    facts = {"state": "running", "task": "shop.sync", "rate": "1/3600000"}
    site.store.acquire("k", "a/1", 30.0, facts=written(facts), starts_run=True)
    site.wait_by_hand("k", rate=facts["rate"])
    site.store.release("k", "a/1")
    for _ in range(2):
        site.sampler._look()
    assert site.rows("needs") == []
    assert "1 of 1 in the last hour, the next place in" in site.get("lines").parsed.text


def test_who_cannot_be_asked_is_not_said_to_be_missing(site: Site, lone: Site) -> None:
    """Where remote control is off, workers may be busy; without an app nobody is asked."""
    site.sampler.around.troubles = {
        "workers": "workers cannot be asked (worker_enable_remote_control is off)"
    }
    for each in (site, lone):
        queued(each)
        assert each.rows("needs") == []
    headless(lone)
    [need] = lone.rows("needs")
    assert "no worker hands the lock" in need["told"]
    assert "The workers could not be asked: workers cannot be asked" in site.get().parsed.text


def test_an_app_whose_tasks_cannot_be_read_leaves_the_page_as_it_is(shop: Shop, site: Site) -> None:
    """They are imported beside the page, which says so where that fails."""
    task = shop.unique(body, lock_max_waiting=3)
    shop.app.loader.import_default_modules = raising(ImportError("no module"))
    site.show(holder(remaining=1.0), lines=[line()])
    assert [need["kind"] for need in site.rows("needs")] == ["dead holder", "line is full"]
    task.lock_ttl = "soon"
    assert [need["kind"] for need in site.rows("needs")] == ["dead holder"]
