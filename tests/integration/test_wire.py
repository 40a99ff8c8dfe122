"""A server that speaks nonsense, in pieces, too much, or nothing: what the lock store makes of it."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from types import FrameType
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Entry, Grant, Promotion, Term
from tests.facts import wait_until
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, granted, refused

A, B = "job-a/1", "job-b/1"

#: Seconds; short, because some tests wait it out.
TIMEOUT = 0.3

#: What comes of one script call: bytes that are sent, a pause in seconds; ``None`` closes the connection.
Reply = bytes | float | None


class FakeServer:
    """Greets as a server does, and answers scripts, and a look at values, as a test has written down."""

    def __init__(self) -> None:
        #: For each script call what is done, one after the other; the last one for all that follow.
        self.replies: list[list[Reply]] = []
        self.calls: list[int] = []  # by connection
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens; with the older protocol a greeting is answered with OK throughout."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0?protocol=2"

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(60)
                self.calls.append(0)
                threading.Thread(
                    target=self._serve, args=(connection, len(self.calls) - 1), daemon=True
                ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            while request := connection.recv(65536):
                if not (b"EVALSHA" in request or b"MGET" in request):
                    connection.sendall(b"+OK\r\n")
                    continue
                self.calls[number] += 1
                self.requests.append(request)
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                for part in reply:
                    if part is None:
                        return
                    if isinstance(part, bytes):
                        connection.sendall(part)
                    else:
                        time.sleep(part)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server that answers what the test says."""
    with closing(FakeServer()) as server:
        yield server


@pytest.fixture
def store(server: FakeServer) -> Iterator[RedisStore]:
    """A store on it."""
    with closing(connect(server.url, socket_timeout=TIMEOUT)) as store:
        yield store


def _acquire(store: RedisStore, token: str = A) -> Any:
    return store.acquire("n", token, 30.0, facts=ABOUT)


def _in_pieces(reply: bytes, pause: float, size: int = 1) -> list[Reply]:
    return [part for at in range(0, len(reply), size) for part in (reply[at : at + size], pause)]


def _costs_one_request(server: FakeServer, ask: Callable[[RedisStore], object], said: bytes) -> str:
    """What is told of an answer that is none; the next request gets its own, on a connection of its own."""
    server.replies = [[said], [said], [b"+granted 7\r\n"]]
    before, began = len(server.calls), time.monotonic()
    with closing(connect(server.url, socket_timeout=TIMEOUT)) as store:
        with pytest.raises(LockUnavailable, match=r"it answered .*, which is no answer") as caught:
            ask(store)
        assert time.monotonic() - began < 2 * TIMEOUT + 0.5
        assert granted(_acquire(store)).fence == 7
    assert server.calls[before:] == [1, 1, 1]
    return caught.value.reason


@pytest.mark.parametrize(
    "said",
    [
        *(
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            b"what?",
            b":12x\r\n",
            b":1_0\r\n",
            b":\r\n",
        ),
        *(b":99999999999999999999999\r\n", b"$\r\n", b"+OK\r\n", b"$99999999999\r\n", b"*99999999999\r\n"),
        *(
            b"$3\r\nabcdef\r\n",
            b"*1\r\n*1\r\n:1\r\n",
            b"*1\r\n-ERR inside\r\n",
            b">2\r\n+push\r\n+message\r\n",
        ),
        *(b"redis://user:hunter2@host:6379/0" + b"x" * 2000, b"\x00\xff\r\n" * 100),
    ],
)
def test_nonsense_is_told_cut_and_masked_and_costs_one_request(server: FakeServer, said: bytes) -> None:
    """Law 9: whatever listens there."""
    reason = _costs_one_request(server, _acquire, said)
    assert "hunter2" not in reason
    assert len(reason) < 500
    assert reason.isprintable()


def test_an_error_is_told_cut_and_masked(server: FakeServer, store: RedisStore) -> None:
    """Law 9: as whatever else a server says."""
    server.replies = [[b"-ERR redis://user:hunter2@h/0 " + b"x" * 3000 + b"\r\n"]]
    with pytest.raises(LockUnavailable, match=r"ERR redis://") as caught:
        _acquire(store)
    assert "hunter2" not in str(caught.value)
    assert len(caught.value.reason) < 500


def test_a_greeting_that_is_none_is_no_error_of_redis_py(server: FakeServer) -> None:
    """Law 9: it takes some for granted, and raises what no caller expects; ``OK`` has no version."""
    url = server.url.replace("protocol=2", "protocol=3")
    with (
        closing(connect(url, socket_timeout=TIMEOUT)) as store,
        pytest.raises(LockUnavailable, match=r"greeting.* AttributeError") as caught,
    ):
        _acquire(store)
    assert caught.value.server == server.url.partition("?")[0]


@pytest.mark.parametrize("more", [b":2\r\n", b"+OK\r\n", b":", b"\r\n"])
def test_more_than_one_answer_is_none(server: FakeServer, store: RedisStore, more: bytes) -> None:
    """The rest would be taken for the next one's."""
    server.replies = [[b"+granted 1\r\n" + more], [b"+granted 2\r\n"]]
    assert granted(_acquire(store)).fence == 2
    assert server.calls == [1, 1]


_HELD, _PROMOTED = b"$7\r\nrefused\r\n$4\r\nheld\r\n", b"$8\r\npromoted\r\n:1\r\n"
#: Two holders as pairs: so scripts answer with flat lists.
_TIME = b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"
_NESTED = b"*5\r\n" + _HELD + b":2\r\n*2\r\n$3\r\na/1\r\n:5000\r\n*2\r\n$3\r\nb/1\r\n:6000\r\n"
#: Well-formed answers that no script of this verb gives.
SHAPES: list[tuple[Callable[[RedisStore], object], list[bytes]]] = [
    (
        _acquire,
        [b"$3\r\nabc\r\n", b"*0\r\n", b":1\r\n", b"+released\r\n", b"+granted\r\n", b"+granted x\r\n"],
    ),
    (_acquire, [b"+done\r\n", b"+refused\r\n", b"*3\r\n" + _HELD + b":0\r\n", _NESTED]),
    (_acquire, [b"*5\r\n" + _HELD + b":2\r\n$1\r\nx\r\n:5\r\n"]),
    (lambda store: store.release("n", A), [b"*0\r\n", b"$1\r\na\r\n", b":1\r\n", b"+granted 1\r\n"]),
    (lambda store: store.release("n", A), [b"*3\r\n$8\r\nreleased\r\n" + _PROMOTED]),
    (lambda store: store.release("n", A), [b"*4\r\n$8\r\nreleased\r\n" + _PROMOTED + b"$1\r\nx\r\n"]),
    (lambda store: store.renew([Term("n", A, 3.0)]), [b":1\r\n", b"$1\r\na\r\n", b"*2\r\n:1\r\n:1\r\n"]),
    (lambda store: store.inspect("n"), [b":0\r\n", b"+granted 1\r\n", b"$0\r\n\r\n", b"*1\r\n:1\r\n"]),
    (lambda store: store.names(), [b":1\r\n", b"*1\r\n:1\r\n"]),
    (
        lambda store: [*store.holders_of_each(["n"])],
        [
            b"*1\r\n$1\r\na\r\n$1\r\na\r\n",
            b":1\r\n:1\r\n",
            b"*0\r\n:1\r\n",
            b"*1\r\n:1\r\n:1\r\n",
            b"*1\r\n*1\r\n:1\r\n:1\r\n",
            b"*0\r\n" + _TIME,
            b"*2\r\n$1\r\na\r\n$1\r\na\r\n" + _TIME,
            b"*1\r\n*2\r\n$1\r\na\r\n,1\r\n" + _TIME,
            b"*1\r\n*1\r\n*0\r\n" + _TIME,
        ],
    ),
    (lambda store: store.names(limit=100_000), [b"*2\r\n$1\r\n1\r\n:1\r\n", b"*1\r\n$1\r\na\r\n"]),
    (lambda store: store.names(limit=100_000), [b":1\r\n", b"*2\r\n$1\r\na\r\n$1\r\na\r\n"]),
    (lambda store: [*store.walk_lines(limit=1)], [b"*1\r\n:1\r\n"]),
    (lambda store: store.claim_and_push("n", A, 3.0, queue="q", text="", facts=ABOUT), [b"$2\r\nOK\r\n"]),
    (
        lambda store: store.release_and_store("n", A, "k", "{}", 0),
        [b":1\r\n", b"+released\r\n", b"+stored\r\n"],
    ),
    (
        lambda store: store.park("n", A, Entry("push", "q", 3.0, ABOUT), nonce="1"),
        [b"+granted 1\r\n", b"*0\r\n"],
    ),
    (lambda store: store.leave("n", A), [b"+left\r\n", b"*3\r\n$4\r\nleft\r\n$0\r\n\r\n$4\r\nmore\r\n"]),
    (lambda store: store.settle("n", A, 30.0), [b"+parked\r\n"]),
    (lambda store: store.sweep(), [b"*4\r\n$5\r\nswept\r\n:0\r\n$5\r\nlines\r\n:1\r\n"]),
    (lambda store: store.waiting("n"), [b"*4\r\n$7\r\nwaiting\r\n:0\r\n$7\r\nentries\r\n:1\r\n"]),
]


def test_an_answer_of_another_shape_is_told_and_costs_one_request(server: FakeServer) -> None:
    for ask, answers in SHAPES:
        for said in answers:
            assert said.decode().splitlines()[0] in _costs_one_request(server, ask, said)


def test_values_whose_answer_is_lost_are_asked_for_once_more(server: FakeServer, store: RedisStore) -> None:
    """They only read; whose second answer is lost too, the server is away."""
    values = b"*1\r\n$10\r\njob-a/1\0{}\r\n" + _TIME
    server.replies = [[None], [values, b":5000\r\n"], [None], [None], [b"+released\r\n"]]
    assert [[hold.token for hold in holds] for holds in store.holders_of_each(["n"])] == [[A]]
    with pytest.raises(LockUnavailable):
        [*store.holders_of_each(["n"])]
    assert sum(server.calls) == 4
    assert store.release("n", A).released


@pytest.mark.parametrize("refusal", ["NOPERM this user has no permissions", "LOADING the dataset"])
def test_where_one_of_several_commands_is_refused_so_are_all(
    server: FakeServer, store: RedisStore, refusal: str
) -> None:
    """A walk would else take for free what it may not see."""
    server.replies = [[b"*1\r\n$-1\r\n-%b\r\n" % refusal.encode()]]
    with pytest.raises(LockUnavailable, match=refusal):
        [*store.holders_of_each(["n"])]


HELD = b"*5\r\n$7\r\nrefused\r\n$4\r\nheld\r\n:1\r\n$10\r\njob/1\0{}\r\n\r\n:5000\r\n"


PROMOTED = b"$8\r\npromoted\r\n:2\r\n:1\r\n$3\r\nm/1\r\n$3\r\none\r\n"
THEIRS = b"$4\r\nheld\r\n:1\r\n$3\r\nb/1\r\n:5000\r\n"


def test_what_the_end_of_a_hold_has_promoted_is_told_at_one_place(
    server: FakeServer, store: RedisStore
) -> None:
    """Whoever ends a hold need not know what waits for it."""
    told: list[object] = []
    store.on_promoted = told.append
    released = b"$8\r\nreleased\r\n"
    ends: list[tuple[Callable[[], Any], bytes]] = [
        (lambda: store.release("n", A), b"*6\r\n" + released),
        (lambda: store.hand_on("n", A, B, 30.0, facts=ABOUT), b"*6\r\n" + released),
        (lambda: store.force_release("n"), b"*10\r\n" + released + THEIRS),
        (lambda: store.release_and_store("n", A, "key", "{}", 0)[0], b"*7\r\n$6\r\nstored\r\n" + released),
    ]
    for end, said in ends:
        server.replies = [[said + PROMOTED]]
        answer = end()
        assert (answer.released, answer.promoted) == (True, told.pop())
        assert answer.promoted == (Promotion("n", "m/1", b"one", sends=2, kept=1),)


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("reply", [b"+granted 1790000000000000\r\n", HELD], ids=["granted", "refused"])
def test_an_answer_in_parts_is_read(server: FakeServer, store: RedisStore, reply: bytes, size: int) -> None:
    """Also where a piece ends in the middle of a line's end, or of a text, which may have one inside."""
    server.replies = [_in_pieces(reply, 0.001, size)]
    for _ in range(2):
        answer = _acquire(store)
        assert granted(answer).fence == 1790000000000000 if reply is not HELD else refused(answer)
    assert server.calls == [2]


def test_a_text_that_looks_like_its_answers_end_is_read_whole(server: FakeServer, store: RedisStore) -> None:
    """Anybody's value, of which a packet brings a part; the rest would be read as the next answer."""
    first = b"*5\r\n$7\r\nrefused\r\n$4\r\nheld\r\n:1\r\n$9\r\nx\r\n:7\r\n"
    server.replies = [[b"+granted 1\r\n"], [first, 0.05, b"yz\r\n:5000\r\n"], [b"+granted 2\r\n"]]
    granted(_acquire(store))
    assert refused(_acquire(store)).hold.token == "x\r\n:7\r\nyz"
    assert granted(_acquire(store)).fence == 2
    assert server.calls == [3]


@pytest.mark.parametrize("reply", [[], _in_pieces(b":" + b"1" * 1000, TIMEOUT / 20), [b"*4\r\n:0\r\n"]],
                         ids=["nothing", "trickling", "a part"])  # fmt: skip
def test_an_answer_that_does_not_come_is_waited_for_in_a_bounded_time(
    server: FakeServer, store: RedisStore, reply: list[Reply]
) -> None:
    """Law 9: two socket timeouts for both attempts, however many bytes come in them."""
    server.replies = [reply]
    began = time.monotonic()
    with pytest.raises(LockUnavailable) as caught:
        _acquire(store)
    assert time.monotonic() - began < 2 * TIMEOUT + 0.4
    assert caught.value.operation == "acquire"
    server.replies = [[b"+granted 7\r\n"]]
    assert granted(_acquire(store)).fence == 7


def test_an_answer_in_pieces_leaves_the_next_its_patience(server: FakeServer, store: RedisStore) -> None:
    """The time that was left for the first one's end is not what the next one gets."""
    in_pieces = [b"+gra", 0.7 * TIMEOUT, b"nt", 0.7 * TIMEOUT, b"ed", 0.02, b" 1\r\n"]
    server.replies = [in_pieces, [0.7 * TIMEOUT, b"+granted 2\r\n"]]
    assert [granted(_acquire(store)).fence for _ in range(2)] == [1, 2]
    assert server.calls == [2]


def test_a_request_that_nobody_reads_is_given_up_in_time(store: RedisStore, server: FakeServer) -> None:
    """A long one, of which the server takes a part."""
    server.replies = [[b"+granted 1\r\n"], [60.0]]
    granted(_acquire(store))
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        store.acquire("n", B, 30.0, facts="x" * 20_000_000)
    assert time.monotonic() - began < 2 * TIMEOUT + 0.8


class Stop(BaseException):
    """As SystemExit, out of a signal handler."""


class LateError(ValueError):
    """What might be taken for an answer of another shape."""


@pytest.mark.parametrize("error", [Stop, LateError])
@pytest.mark.parametrize("is_begun", [True, False], ids=["begun", "acquired"])
def test_what_a_signal_has_interrupted_is_not_answered_to_the_next(
    server: FakeServer, store: RedisStore, error: type[BaseException], is_begun: bool
) -> None:
    """And what it raises is the caller's."""
    server.replies = [[b"+granted 1\r\n"], [0.2, b"+granted 2\r\n"], [b"+granted 3\r\n"]]
    granted(_acquire(store))

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(error):
            store.begin("n", B, 30.0, facts=ABOUT)() if is_begun else _acquire(store, B)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert granted(_acquire(store)).fence == 3
    assert server.calls == [2, 1]


def test_signals_that_are_handled_meanwhile_prolong_no_wait(server: FakeServer, store: RedisStore) -> None:
    """Law 9, in a process with a profiler or a heartbeat by SIGALRM: each of them interrupts the wait."""
    server.replies = [[b"+granted 1\r\n"], [20 * TIMEOUT, None]]
    granted(_acquire(store))
    handled = []
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT / 5, TIMEOUT / 5)
        with pytest.raises(LockUnavailable, match="no answer in time"):
            _acquire(store, B)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 2 * TIMEOUT + 0.4
    assert len(handled) >= 5


def _begun(server: FakeServer, store: RedisStore, *replies: list[Reply]) -> Callable[[], Any]:
    """A claim on an open connection that is sent now and read later."""
    server.replies = [[b"+granted 9\r\n"], *replies]
    _acquire(store)
    read = store.begin("n", A, 30.0, facts=ABOUT)
    assert wait_until(lambda: len(server.requests) == 2, 10)
    return read


def test_a_connection_whose_answer_nobody_read_is_not_used(server: FakeServer, store: RedisStore) -> None:
    read = _begun(server, store, [b"+granted 1\r\n"], [b"+granted 2\r\n"])
    del read
    assert granted(_acquire(store)).fence == 2
    assert server.calls == [2, 1]


def test_what_is_begun_is_asked_again_where_its_answer_was_lost(
    server: FakeServer, store: RedisStore
) -> None:
    assert granted(_begun(server, store, [None], [b"+repeated 2\r\n"])()).repeated
    assert server.calls == [2, 1]


def test_the_time_until_what_is_begun_is_read_does_not_count(server: FakeServer, store: RedisStore) -> None:
    read = _begun(server, store, [b"+granted ", 3 * TIMEOUT, b"1\r\n"])
    time.sleep(2.5 * TIMEOUT)
    assert isinstance(read(), Grant)
    assert server.calls == [2]


def test_what_is_begun_is_given_up_in_time_where_nobody_answers(
    server: FakeServer, store: RedisStore
) -> None:
    read = _begun(server, store, [])
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        read()
    assert time.monotonic() - began < 2 * TIMEOUT + 0.4
    assert server.calls == [2, 1]


def test_a_password_that_no_bytes_stand_for_is_not_printed(tcp_server: EmbeddedServer) -> None:
    """What it cannot be encoded with is an error whose repr has the password in it."""
    url = tcp_server.redis_url.replace("://", "://:hunter2\ud800@", 1)
    with closing(connect(url)) as store, pytest.raises(LockUnavailable) as raised:
        store.inspect("n")
    assert "UnicodeEncodeError" in raised.value.reason
    assert "hunter2" not in str(raised.value)
