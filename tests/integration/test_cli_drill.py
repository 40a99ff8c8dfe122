"""``celery-redislock drill``, with real processes on real servers: what it shows, and what it leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from celery_redislock.locks import Lock, connect
from celery_redislock.store.store import NOBODY
from tests.facts import wait_until
from tests.pages import acl_rule
from tests.servers import EmbeddedServer, failing_over
from tests.tls import WAYS, tls_server

_COMMAND = [sys.executable, "-c", "from celery_redislock.cli import main; main()"]
#: Seconds until a drill is over, on the busiest machine.
PATIENCE = 60.0


class Drilling:
    """A drill that runs, with its temporary files in a folder of its own."""

    def __init__(self, url: str, folder: Path, *words: str, seconds: float = 3) -> None:
        self.folder = folder
        environment = {**os.environ, "TMPDIR": str(folder)}
        command = [*_COMMAND, "--url", url, "drill", "--seconds", str(seconds), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def ended(self) -> tuple[int, str, str]:
        """Its exit status, what it printed, and its errors."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def children(self) -> dict[int, str]:
        """Its processes that live, and the state of each; their command lines name the folder."""
        found = {}
        for line in subprocess.check_output(
            ["ps", "-axww", "-o", "pid=,stat=,args="], text=True
        ).splitlines():
            pid, state, command = line.split(None, 2)
            if str(self.folder) in command and not state.startswith("Z"):
                found[int(pid)] = state
        return found

    def leaves_nothing(self) -> bool:
        return not self.children() and not [*self.folder.iterdir()]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_url, decode_responses=True)) as client:
        yield client


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="drill-", dir="/tmp") as name:
        yield Path(name)


def test_a_drill_finds_no_overlap_and_leaves_nothing(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path
) -> None:
    """Four processes held, waited and were killed; afterwards there is no key, process or file of theirs.

    A key that somebody else has put there meanwhile stays.
    """
    drilling = Drilling(redis_url, folder, "--prefix", prefix, "--json", seconds=6)
    assert wait_until(drilling.children, PATIENCE)
    client.set(f"{prefix}:late", "somebody else's", ex=100)
    status, out, err = drilling.ended()

    assert status == 0, err
    found = json.loads(out)
    assert (found["overlaps"], found["fences_out_of_order"]) == ([], [])
    assert found["holds"] > 3
    assert found["kills"] >= 1
    assert found["pauses"] >= 1
    assert 0 < found["hand_off"]["p50"] <= found["hand_off"]["p99"]
    assert found["round_trip"]["p50"] > 0
    assert found["findings"]
    assert [*client.scan_iter(f"{prefix}*")] == [f"{prefix}:late"]
    client.delete(f"{prefix}:late")
    assert drilling.leaves_nothing()


def test_a_lock_that_is_taken_from_its_holder_makes_an_overlap_and_status_1(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path
) -> None:
    """A server that forgets grants again what is held: the drill sees two that trust their lock at once."""
    drilling = Drilling(redis_url, folder, "--prefix", prefix, seconds=3)
    assert wait_until(drilling.children, PATIENCE)
    give_up = time.monotonic() + PATIENCE
    with closing(connect(redis_url, prefix=prefix)) as store:
        while drilling.process.poll() is None and time.monotonic() < give_up:
            client.delete(f"{prefix}:{{resource}}:lock")
            store.release("resource", NOBODY)  # hands what is free to the first in line
            time.sleep(0.25)  # a hand-off is over, and a hold has begun
    status, out, err = drilling.ended()

    assert status == 1, err
    assert " held it at once for " in out
    assert drilling.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_one_that_is_interrupted_leaves_no_key_process_or_file(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path, number: signal.Signals
) -> None:
    """Also while some of its processes stand still."""
    drilling = Drilling(redis_url, folder, "--prefix", prefix, seconds=60)
    assert wait_until(lambda: stands_still(drilling), PATIENCE)
    assert [*client.scan_iter(f"{prefix}*")]
    drilling.process.send_signal(number)
    status, _, err = drilling.ended()

    assert status == 2
    assert "the drill was interrupted" in err
    assert "Traceback" not in err
    assert [*client.scan_iter(f"{prefix}*")] == []
    assert drilling.leaves_nothing()


def test_the_processes_of_one_that_is_killed_end_and_its_keys_expire(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path
) -> None:
    """Nobody cleans up after SIGKILL: processes that stand still end, too, and no key is without an end."""
    drilling = Drilling(redis_url, folder, "--prefix", prefix, seconds=60)
    assert wait_until(lambda: stands_still(drilling), PATIENCE)
    time.sleep(0.5)
    drilling.process.kill()
    drilling.ended()

    assert wait_until(drilling.leaves_nothing, PATIENCE)
    keys = [*client.scan_iter(f"{prefix}*")]
    assert [key for key in keys if client.pttl(key) == -1] == []
    for key in keys:
        client.delete(key)


def test_a_prefix_that_is_in_use_is_refused_and_its_keys_stay(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path
) -> None:
    """Whose locks they are is not known, so nothing is played beside them, and nothing deleted."""
    store = connect(redis_url, prefix=prefix)
    with Lock(store, "somebody-elses"):
        status, _, err = Drilling(redis_url, folder, "--prefix", prefix).ended()
        assert client.exists(f"{prefix}:{{somebody-elses}}:lock")

    assert status == 2
    assert f"Error: {prefix}:" in err
    assert "prefix is in use" in err
    store.close()
    for key in client.scan_iter(f"{prefix}*"):
        client.delete(key)


def test_the_prefix_of_the_locks_themselves_is_refused_though_nothing_is_held(
    redis_url: str, folder: Path
) -> None:
    """Keys that come while it plays would be deleted with its own."""
    status, _, err = Drilling(redis_url, folder, "--prefix", "redislock").ended()
    assert status == 2
    assert "redislock is where the keys of" in err


def test_a_time_that_is_no_number_is_refused(redis_url: str, folder: Path) -> None:
    """It is neither less nor more than what is allowed."""
    status, _, err = Drilling(redis_url, folder, seconds=float("nan")).ended()
    assert status == 2
    assert "Invalid value for '--seconds': nan is not in the range 3<=x<=3600." in err


def test_a_folder_whose_name_is_too_long_for_a_socket_is_told(
    redis_url: str, client: redis.Redis, prefix: str, folder: Path
) -> None:
    """A socket's path has some hundred characters at most; who sets TMPDIR learns what to set."""
    deep = folder / ("d" * 100)
    deep.mkdir()
    status, _, err = Drilling(redis_url, deep, "--prefix", prefix).ended()

    assert status == 2
    assert "set TMPDIR to a short path" in err
    assert "Traceback" not in err
    assert [*client.scan_iter(f"{prefix}*")] == []


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServer]:
    """A server whose users may be changed."""
    with EmbeddedServer(port=0) as server:
        yield server


@pytest.mark.parametrize(
    "missing",
    [
        "scan",
        "del",
        "info",
        "zrem",
        pytest.param("evalsha", marks=pytest.mark.slow),
        pytest.param("blpop", marks=pytest.mark.slow),
    ],
)
def test_a_user_without_a_right_is_told_which_and_nothing_is_left(
    guarded: EmbeddedServer, prefix: str, folder: Path, missing: str
) -> None:
    """The rule of docs/server.md and scan are enough; without one of them its name is told."""
    port = guarded.port
    with closing(redis.Redis(port=port or 0, decode_responses=True)) as admin:
        admin.execute_command("ACL", "DELUSER", "locks")  # type: ignore[no-untyped-call]
        rule = [word.replace("redislock", prefix) for word in acl_rule()[2:]]
        admin.execute_command("ACL", "SETUSER", *rule, "+scan")  # type: ignore[no-untyped-call]
        admin.execute_command("ACL", "SETUSER", "locks", f"-{missing}")  # type: ignore[no-untyped-call]
        url = f"redis://locks:password@127.0.0.1:{port}/0"
        drilling = Drilling(url, folder, "--prefix", f"{prefix}:drill", seconds=20)
        status, _, err = drilling.ended()

        assert status == 2
        assert missing in err.lower()
        assert "Users and ACLs" in err
        assert "password" not in err
        assert [*admin.scan_iter(f"{prefix}*")] == []
        assert drilling.leaves_nothing()


def test_rights_that_are_missing_in_scripts_are_told(prefix: str, folder: Path) -> None:
    """Redis 7.0 says of none which it is."""
    if (binary := shutil.which("redis-server")) is None:
        pytest.skip("no redis-server is installed")
    with (
        EmbeddedServer(port=0, binary=binary) as server,
        closing(redis.Redis(port=server.port or 0)) as admin,
    ):
        rule = [word.replace("redislock", prefix) for word in acl_rule()[2:]]
        admin.execute_command("ACL", "SETUSER", *rule, "+scan", "-set", "-zadd")  # type: ignore[no-untyped-call]
        url = f"redis://locks:password@127.0.0.1:{server.port}/0"
        status, _, err = Drilling(url, folder, "--prefix", prefix).ended()

        assert status == 2
        assert "; missing in scripts: +set +zadd; a drill needs" in err
        assert admin.keys("*") == []


def test_keys_that_a_user_may_not_use_are_told(guarded: EmbeddedServer, prefix: str, folder: Path) -> None:
    """As the pattern that a rule takes."""
    with closing(redis.Redis(port=guarded.port or 0)) as admin:
        admin.execute_command("ACL", "DELUSER", "locks")  # type: ignore[no-untyped-call]
        admin.execute_command("ACL", "SETUSER", *acl_rule()[2:], "+scan")  # type: ignore[no-untyped-call]
    url = f"redis://locks:password@127.0.0.1:{guarded.port}/0"
    status, _, err = Drilling(url, folder, "--prefix", prefix).ended()

    assert status == 2
    assert f"; allow its user ~{prefix}:*; a drill needs" in err


def test_a_right_that_is_taken_meanwhile_is_told_of_the_server_itself(
    guarded: EmbeddedServer, prefix: str, folder: Path
) -> None:
    """The processes know the drill's socket alone, of which nobody else has heard."""
    with closing(redis.Redis(port=guarded.port or 0)) as admin:
        rule = [word.replace("redislock", prefix) for word in acl_rule()[2:]]
        admin.execute_command("ACL", "DELUSER", "locks")  # type: ignore[no-untyped-call]
        admin.execute_command("ACL", "SETUSER", *rule, "+scan")  # type: ignore[no-untyped-call]
        url = f"redis://locks:password@127.0.0.1:{guarded.port}/0"
        drilling = Drilling(url, folder, "--prefix", prefix, seconds=20)
        assert wait_until(lambda: len([*folder.glob("*/client-3")]) == 1, PATIENCE)
        admin.execute_command("ACL", "SETUSER", "locks", "-zadd")  # type: ignore[no-untyped-call]
        status, _, err = drilling.ended()

        assert status == 2
        assert f"at the lock server redis://127.0.0.1:{guarded.port}/0" in err
        assert "unix:" not in err
        assert admin.keys(f"{prefix}*") == []


def stands_still(drilling: Drilling) -> bool:
    """Whether the second fault is on: some have held the lock."""
    return any("T" in state for state in drilling.children().values())


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_server_that_goes_away_is_told_beside_what_was_seen(
    prefix: str, folder: Path, is_interrupted: bool
) -> None:
    """Its keys cannot be deleted then; what was found is not lost with them."""
    with EmbeddedServer(port=0) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        drilling = Drilling(url, folder, "--prefix", prefix, seconds=60 if is_interrupted else 4)
        assert wait_until(lambda: stands_still(drilling), PATIENCE)
        server.kill()
        if is_interrupted:
            drilling.process.send_signal(signal.SIGINT)
        status, out, err = drilling.ended()

    assert status == 2
    told = f"the server has been away, so keys that begin with {prefix}: expire within ten minutes"
    if is_interrupted:
        assert f"the drill was interrupted; its processes are gone; {told}" in err
    else:
        assert "\nholds  " in out
        assert f"error                     {told}" in out
    assert drilling.leaves_nothing()


def test_a_server_that_restarts_and_one_that_evicts_are_told(prefix: str, folder: Path) -> None:
    """What the figures show may be due to it."""
    evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
    with EmbeddedServer(port=0, extra_args=evicting) as server:
        drilling = Drilling(f"redis://127.0.0.1:{server.port}/0", folder, "--prefix", prefix, seconds=4)
        assert wait_until(lambda: stands_still(drilling), PATIENCE)
        server.restart()
        _, out, _ = drilling.ended()

    assert "warning                   the server was restarted, or another one answers since" in out
    assert "maxmemory-policy 'allkeys-lru'" in out


def test_the_documented_rights_are_enough(guarded: EmbeddedServer, prefix: str, folder: Path) -> None:
    """Who copies the rule, and adds scan, can drill, with a password that no process is given."""
    with closing(redis.Redis(port=guarded.port or 0, decode_responses=True)) as admin:
        rule = [word.replace("redislock", prefix) for word in acl_rule()[2:]]
        admin.execute_command("ACL", "DELUSER", "locks")  # type: ignore[no-untyped-call]
        admin.execute_command("ACL", "SETUSER", *rule, "+scan")  # type: ignore[no-untyped-call]
        url = f"redis://locks:password@127.0.0.1:{guarded.port}/0"
        drilling = Drilling(url, folder, "--prefix", f"{prefix}:drill")
        status, _, err = drilling.ended()

        assert status == 0, err
        assert [*admin.scan_iter(f"{prefix}*")] == []


@pytest.mark.slow
def test_it_plays_on_the_primary_that_sentinels_name(folder: Path) -> None:
    """Each connection asks the Sentinels, as those of locks do."""
    with tempfile.TemporaryDirectory() as place, failing_over(Path(place)) as (primary, _, sentinel):
        url = f"sentinel://127.0.0.1:{sentinel.port}/0?master_name=mine"
        status, out, err = Drilling(url, folder).ended()

        assert status == 0, err
        assert "1 replica: a failover may forget its latest locks" in out
        with closing(redis.Redis(port=primary.port or 0)) as client:
            assert client.keys("*drill*") == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_plays_behind_tls(folder: Path, tmp_path: Path, way: str) -> None:
    """Its processes speak to the drill, which alone trusts the server's certificate."""
    with tls_server(way, tmp_path) as (_, url):
        status, _, err = Drilling(url, folder).ended()

        assert status == 0, err
