"""The code in the pages works: each page's Python runs, in order, against a server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.scheduling.state import NOTHING, States
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Entry, Grant, Mark, Merge, Refusal, Term
from tests.pages import PAGES, ROOT, acl_rule, blocks_of, recipes_of_the_readme

#: In the pages this is where the server is.
THERE = "localhost:6379"

#: What the pages only declare is carried out after their own code.
AFTERWARDS = {
    "README.md": recipes_of_the_readme()
    + """
assert len(recipes) == 9
for recipe in recipes:
    first = recipe.delay()
    again = recipe.delay()
    assert not first.is_duplicate, recipe.name
    assert again.is_duplicate or recipe.on_conflict in ("wait", "coalesce"), recipe.name
""",
    "docs/asyncio.md": """
async def all_of_it():
    async with aio.connect(SERVER) as store:
        await sell(store)
        await work(store)
        assert await aio.Semaphore(store, "licence", 3).available() == 3
asyncio.run(all_of_it())
""",
    "docs/frameworks.md": """
import asyncio
async def all_of_it():
    async with lifespan(app):
        assert await close(7) == {"closed": 7}
        async with aio.Lock(app.state.locks, "account:7"):
            try:
                await asyncio.create_task(close(7))
            except HTTPException as busy:
                assert busy.status_code == 409
            else:
                raise AssertionError
asyncio.run(all_of_it())
""",
    "docs/long-tasks.md": """
app.conf.redislock_eager = True
assert set_balance.apply((1, 50)).get() == 50
balance, fence = database.execute("SELECT balance, fence FROM account").fetchone()
assert balance == 50 and fence > 0
database.execute("UPDATE account SET fence = 9e18")  # a later holder was here
assert "later holder" in str(set_balance.apply((1, 60)).result)
""",
    "docs/migrating.md": """
assert not result.is_duplicate and sync.delay(account=7, full=False).id == result.id
assert not wrap.delay(7).is_duplicate and wrap.delay(7, "fragile").is_duplicate
assert not invoice.delay(7, 1).is_duplicate and invoice.delay(month=2, customer=7).is_duplicate
assert not report.delay(7).is_duplicate
try:
    report.delay(7)
except DuplicateTask:
    pass
else:
    raise AssertionError
assert not reindex.delay(1).is_duplicate and reindex.delay(1).is_duplicate
assert not digest.delay("news").is_duplicate and digest.delay("news").is_duplicate
assert not debit.delay(7).is_duplicate  # published: it waits in line
app.conf.update(task_always_eager=True, redislock_eager=True)
with memory_locks(app) as store:
    assert sync_stock.delay(7).successful()
    for job in (close_month, settle, charge, sync_account, pack, mail, collect):
        assert not job.delay(7).is_duplicate
    assert not bill.delay(7, 1).is_duplicate
    assert send_invoice(7) is None and store.names() == []
    with Lock(app, "close:7"):
        assert close_month.delay(7).is_duplicate
    with hold(sync_account, 7):
        try:
            sync_account.delay(7, full=False)
        except DuplicateTask:
            pass
        else:
            raise AssertionError
    with hold(bill, 7, 1):
        assert bill.delay(7, 2).is_duplicate
    with Lock(app, "pack-7"):
        assert pack.delay(7).is_duplicate
""",
    "docs/periodic-tasks.md": """
from celery_redislock.declaring.options import read_settings
from celery_redislock.scheduling.entries import entries_of, is_shared
entries = entries_of(app)
patterns = read_settings("shop", app.conf.get, {}).beat
assert len(entries) == 3 and all(is_shared(app, entry, patterns) for entry in entries)
""",
    "docs/quickstart.md": """
import contextlib, io, logging.config
with contextlib.redirect_stderr(io.StringIO()) as shown:
    logging.config.dictConfig(LOGGING)
    sync_account.delay(45)
    assert sync_account.apply_async((45,), on_conflict="skip").is_duplicate
(line,) = shown.getvalue().splitlines()
assert line.startswith(f"[{time.strftime('%Y-')}") and ": INFO/MainProcess] skipped shop." in line, line
""",
    "docs/scopes-and-strategies.md": """
from celery.contrib.testing.worker import start_worker
from celery_redislock import lock_acquired
runs = []
@lock_acquired.connect
def began(sender, key, lease, **_):
    if lease and sender.name == price.name:
        runs.append(key)
with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
    assert basket.apply_async().get(timeout=30) == 3 + 4 + 3
    assert len(runs) == 3, runs
    assert twice.apply_async().get(timeout=30) == 3
    assert both.apply_async().get(timeout=30) == [3, 3]
""",
}

RUNNABLE = sorted({block.page for block in blocks_of("python")} - {"docs/testing.md"})


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(port=0) as server:
        yield server


@pytest.fixture(scope="module")
def quorum() -> Iterator[list[EmbeddedServer]]:
    """What the pages call ``locks-1`` and so on."""
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer(port=0)) for _ in range(3)]


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client that may do anything; the server, which is ours alone, is empty."""
    with closing(redis.Redis.from_url(server.redis_url)) as admin:
        admin.flushall()
        admin.acl_deluser("locks")
        yield admin


def run(command: list[str], folder: Path) -> None:
    """Run a program with warnings from this package as errors, and show what it wrote if it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=100, cwd=folder, env=_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "REDISLOCK_ENABLED": ""}


def new_side(diff: str) -> str:
    """Return what a change leaves, each line where it stands in the page."""
    return "\n".join("" if line.startswith("-") else line[1:] for line in diff.splitlines()) + "\n"


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.usefixtures("admin")
def test_the_python_of_a_page_runs(
    page: str, server: EmbeddedServer, quorum: Sequence[EmbeddedServer], tmp_path: Path
) -> None:
    lines = [""] * PAGES[page].count("\n")
    for block in blocks_of("python", "diff"):
        if block.page == page:
            code = block.code if block.language == "python" else new_side(block.code)
            code = code.replace(THERE, f"127.0.0.1:{server.port}")
            for number, one in enumerate(quorum, 1):
                code = code.replace(f"locks-{number}:6379", f"127.0.0.1:{one.port}")
            lines[block.line - 1 : block.line - 1 + code.count("\n")] = code.splitlines()
    # A name of its own: Celery names tasks after the file, and each page must meet no other page's locks.
    program = tmp_path / f"{re.sub('[^a-z]', '_', page.lower())}.py"
    program.write_text("\n".join(lines) + AFTERWARDS.get(page, ""))
    run([sys.executable, program.name], tmp_path)


@pytest.mark.usefixtures("admin")
def test_two_tenants_of_the_page_have_a_job_and_a_result_each(server: EmbeddedServer, tmp_path: Path) -> None:
    """Nobody gets another tenant's result, though the calls are equal and the other one is still queued."""
    code = [block.code for block in blocks_of("python") if block.page == "docs/keys.md"]
    declared, *_ = code
    (tenants,) = [each for each in code if "class TenantTask" in each]
    played = """
from celery.contrib.testing.worker import start_worker
from contextvars import Context
from celery import chain
with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
    by_name = app.send_task(balance.name, (7,))
    try:
        by_name.get(timeout=30)
    except LockKeyError:
        pass
    else:
        raise AssertionError("a message of no tenant has run")
    assert acme.get(timeout=30) == "account 7 of acme"
    assert bolt.get(timeout=30) == "account 7 of bolt"
    chained = chain(balance.si(8), balance.si(9)).apply_async()
    assert chained.get(timeout=30) == "account 9 of bolt"
try:
    Context().run(balance.delay, 7)
except LookupError:
    pass
else:
    raise AssertionError("a call outside of any tenant has a key")
"""
    program = tmp_path / "tenants.py"
    program.write_text((declared + tenants).replace(THERE, f"127.0.0.1:{server.port}") + played)

    run([sys.executable, program.name], tmp_path)


def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    files = [block for block in blocks_of("python") if block.page == "docs/testing.md"]
    names = [re.match(r"# (\w+\.py)\n", block.code) for block in files]
    for block, name in zip(files, names, strict=True):
        (tmp_path / (name[1] if name else "server.py")).write_text(block.code)
    expected = ["shop.py", "conftest.py", "test_shop.py", "test_line.py", "test_burst.py", None, "typed.py"]
    assert [name and name[1] for name in names] == expected
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    run([sys.executable, "-m", "pytest", *options], tmp_path)
    for program in ("server.py", "typed.py"):
        run([sys.executable, program], tmp_path)


def ask(server: redis.Redis, *command: str) -> Any:
    """Send a command as it is written."""
    return server.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


def use_everything(server: EmbeddedServer, *, replicas: int = 0) -> None:
    """Call every verb of the lock store as the user of the page; the first refusal is raised."""
    url = f"redis://locks:password@127.0.0.1:{server.port}/1"
    with closing(connect(url, strict_fence=True, min_replicas=replicas)) as store:
        token = "owner/token"
        assert isinstance(store.acquire("name", token, 5.0, facts="{}", period=5.0, message="m"), Grant)
        assert store.renew([Term("name", token, 6.0)]).renewed == [True]
        assert store.inspect("name") is not None
        assert store.look("name", "another/token", period=1.0) is not None
        assert store.names() == store.names(limit=100_000) == ["name"]
        assert [*map(len, store.walk_holds())] == [1]
        assert store.hand_on("name", token, "owner/next", 5.0, facts="{}", mark=Mark("m", 5.0)).released
        assert store.release("name", "owner/next", opened_by="owner/next", mark=Mark("m", 5.0)).released
        store.mark_done("name", "m", 5.0)
        assert not store.release("name", token).released
        for _ in range(300):  # by about one in sixteen expired entries are swept: by one of these
            store.acquire("name", token, 0.001, facts="{}")
        store.force_release("name")
        assert list(store.release_claims(["owner"])) == []
        take_a_place(store)
        start_by_rate(store)
        assert store.server_says("memory", "maxmemory_policy") == "noeviction"
        assert store.acts("{}") == []
        assert store.acts() == [{}]
        stand_in_line(store)
        hold_together(store)
        send_a_tick(store)


def take_a_place(store: RedisStore) -> None:
    """Wait, give way to a newer call, and be revoked, as messages do whose calls coalesce."""
    assert isinstance(store.acquire("newest", "owner/token", 5.0, facts="{}"), Grant)
    entry = Entry("push", "redislock:queue", 5.0, '{"task":"shop.sync"}')
    for id_, older, word in (("a/1", "", "parked"), ("b/1", "", "older"), ("b/1", "a/1", "parked")):
        merge = Merge(f'"{id_}"\0{id_}', instead_of=older)
        assert store.park("newest", id_, entry, nonce=f"{id_}{older}", merge=merge).word == word
    assert store.newest("newest", "shop.sync", "a/1", None) == "b/1"
    assert list(store.release_claims(["b"])) == []
    assert store.leave("newest", "b/1")[0] == "left"
    assert store.release("newest", "owner/token").released


def start_by_rate(store: RedisStore) -> None:
    """Start as runs do of tasks with a rate, of few starts and of many."""
    for number, rate in enumerate(["1/5000", "1/5000", "1001/5000", "1001/5000"]):
        facts = f'{{"rate":"{rate}","state":"running"}}'
        answer = store.acquire("rated", f"{number}/1", 5.0, facts=facts, starts_run=True)
        assert isinstance(answer, Refusal if number == 1 else Grant)
        store.release("rated", f"{number}/1")


def stand_in_line(store: RedisStore) -> None:
    """Park, look, sweep, leave, and be woken, as messages do that wait, and wait for a bell."""
    assert isinstance(store.acquire("busy", "owner/token", 5.0, facts="{}"), Grant)
    entry = Entry("push", "redislock:queue", 5.0, "{}")
    for id_, place in [("a", "last"), ("b", "last"), ("c", "first"), ("d", "b")]:
        assert store.park("busy", id_, entry, nonce=id_, place=place).word == "parked"
    assert store.waiting("busy")[0] == 4
    assert store.lines() == ["busy"]
    assert [*map(len, store.walk_lines())] == [1]
    assert store.move("busy", "a", "first")
    assert store.sweep().next_in > 0
    assert store.leave("busy", "c")[0] == "left"
    assert store.settle("busy", "b", 5.0)
    assert store.release("busy", "owner/token").released
    if not store.release("busy", "a").released:
        reason = "no permission to push, which stays with the key"
        raise LockUnavailable(store.server, "release", reason)
    store.force_release("busy")
    assert not store.await_bell(store.bell("busy", "nonce"), 0.001)


def hold_together(store: RedisStore) -> None:
    """Hold a lock with another one, who knows a smaller limit, and set one."""
    for owner, limit in (("a", 3), ("b", 2)):
        facts = f'{{"limit":{limit}}}'
        assert isinstance(store.acquire("seats", f"{owner}/1", 5.0, facts=facts, limit=limit), Grant)
    assert isinstance(store.acquire("seats", "c/1", 5.0, facts='{"limit":3}', limit=3), Refusal)
    more: Any = {"facts": '{"limit":3}', "limit": 3, "instead_of": "a/1", "starts_run": True}
    assert isinstance(store.acquire("seats", "a/2", 5.0, **more), Grant)  # it has asked who runs
    assert store.limit("seats", 3, ttl=5.0) is not None
    assert len(store.holders("seats")) == 2
    for token in ("a/2", "b/1"):
        assert store.release("seats", token).released


def send_a_tick(store: RedisStore, entry: str = "ENTRY") -> None:
    """Share an entry of the schedule as a beat does that sends its tick, and pause it."""
    states = States(store, "APP")
    refused = states.take(entry, NOTHING, {}, bound=5.0, next_in=6.0)
    assert refused.status == "refused"  # what is no state is there
    taken = states.take(entry, refused.text, {}, bound=5.0, next_in=6.0)
    assert taken.status == "taken"
    assert states.replace(entry, taken.text, "", 6.0)
    states.pause(entry, 5.0)
    assert states.resume(entry)


def test_the_commands_of_the_page_are_enough_and_each_is_needed(
    server: EmbeddedServer, admin: redis.Redis
) -> None:
    """Each command is taken away in turn, and missed."""
    rule = acl_rule()
    # What a verb calls depends on what there is: with an entry that has expired, acquire tidies up as well.
    stale = {"gone": 1}
    allowed = [word for word in rule if re.fullmatch(r"\+\w+", word)]
    missed = []
    for without in [None, *allowed]:
        admin.flushall()  # ours alone
        admin.script_flush()
        admin.select(1)
        admin.zadd("redislock:index", stale)
        admin.pexpire("redislock:index", 60_000)
        admin.hset("redislock:{APP/ENTRY}:beat", "no", "state")
        admin.acl_deluser("locks")
        ask(admin, *[word for word in rule if word != without])
        try:
            use_everything(server)
        except LockUnavailable as error:
            missed.append(str(error))

    admin.flushall()
    admin.acl_deluser("locks")
    ask(admin, *rule)
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas"):
        use_everything(server, replicas=1)

    # Nothing before that waits for replicas. Without the others nothing is counted.
    needed = [word for word in allowed if word not in {"+wait", "+hincrby", "+hsetnx"}]
    assert len(missed) == len(needed), missed
    assert all("permission" in words.lower() for words in missed), missed


def test_every_key_is_in_the_table_of_the_page(server: EmbeddedServer, admin: redis.Redis) -> None:
    # What is on a broker is in tests/integration/test_restore.py.
    page = PAGES["docs/server.md"].partition("On a broker that is Redis")[0]
    rows = re.findall(r"^\| `(redislock:[^`]+)` \| (\w[\w ]*) \|", page, re.MULTILINE)
    with closing(connect(f"redis://127.0.0.1:{server.port}/0", strict_fence=True)) as store:
        store.acquire("N", "rated/token", 5.0, facts='{"rate":"1/60000"}', starts_run=True)
        store.release("N", "rated/token")
        store.acquire("N", "owner/token", 5.0, facts="{}")
        store.acquire("N", "refused/token", 5.0, facts='{"task":"shop.sync"}')
        store.force_release("N", by="{}")
        store.acts("{}")
        store.claim_and_push("N", "owner/NONCE", 5.0, queue="the broker's", text="", facts="{}")
        store.release("N", "owner/NONCE")
        admin.delete("the broker's", "redislock:{N}:note:NONCE")
        store.home = "here"
        store.homes("here", "name")
        store.acquire("N", "one/of/several", 5.0, facts='{"limit":2,"state":"running"}', limit=2)
        store.park("N", "ID", Entry("give", "here", 5.0, '{"limit":2,"line":1}'), nonce="NONCE")
        run = {"instead_of": "ID", "starts_run": True, "limit": 2}
        store.acquire("N", "run/token", 5.0, facts='{"limit":2}', **run)
        admin.delete("redislock:{N}:note:NONCE")
        store.limit("N", 2, ttl=5.0)
        admin.delete("redislock:{N}:lock")
        store.acquire("N", "owner/token", 5.0, facts="{}", period=5.0)
        store.release("N", "nobody/token", mark=Mark("MESSAGE", 5.0))
        store.park("N", "rung/token", Entry("ring", store.bell("N", "NONCE"), 5.0, "{}"), nonce="NONCE")
        store.release("N", "owner/token")
        admin.delete("redislock:{N}:note:NONCE")
        store.park("N", "sent/token", Entry("give", "here", 5.0, '{"line":1}'), nonce="NONCE")
        admin.delete("redislock:{N}:note:NONCE")
        store.release("N", "rung/token")
        assert store.settle("N", "sent/token", 5.0)
        of_task = '{"task":"shop.sync"}'
        merge = Merge('"waiting"\0waiting/token')
        entry = Entry("give", "elsewhere", 5.0, of_task)
        store.park("N", "waiting/token", entry, nonce="NONCE", within=5.0, merge=merge)
        states = States(store, "APP")
        assert states.take("ENTRY", NOTHING, {}, bound=5.0, next_in=6.0).status == "taken"
        states.pause("ENTRY", 5.0)
    kinds = {b"zset": "sorted set", b"string": "string", b"hash": "hash", b"list": "list"}
    keys = ask(admin, "KEYS", "*")
    spelled = {key: key.decode().replace("starts:60000", "starts:MS") for key in keys}
    found = {spelled[key]: kinds[ask(admin, "TYPE", key)] for key in keys}

    assert found == dict(rows)
    assert {key.decode() for key in keys if ask(admin, "PTTL", key) <= 0} == {
        "redislock:{N}:line", "redislock:{N}:parked", "redislock:{N}:sent", "redislock:{N}:until",
        "redislock:{N}:merge", "redislock:lines",
    }  # fmt: skip
