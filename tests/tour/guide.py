"""What a stop may use, and what was said while it did."""

import io
import json
import logging
import os
import secrets
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import redis
from celery import _state
from celery.app import builtins

from celery_redislock.cli import main, redislock
from celery_redislock.declaring.server import use_store
from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import Lock, RedisStore, connect
from celery_redislock.locks.watchdog import Watchdog
from tests.tour.sites import Site, all_sites
from tests.unit.shop import Shop

__all__ = ["Guide", "Sender", "no_broker", "sayings"]

LOGGER = logging.getLogger("celery_redislock")
#: Seconds the real server may take for an answer, on a machine that stands still.
_PATIENCE = 9.0


class Sender:
    """Sends a worker's signals."""

    def __init__(self, app: Any) -> None:
        self.app = app


class Guide:
    """Leads through one stop, and tidies up behind it.

    Attributes:
        patch: changes of the environment, undone after the stop.
        said: what was said so far: log lines, errors, and what commands wrote.
        later: enter what must be closed.
    """

    def __init__(self, server: EmbeddedServer, passed: set[Site]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.said: list[str] = []
        self.later = ExitStack()
        self._server = server
        self._passed = passed
        self._prefix = ""

    @property
    def port(self) -> int:
        """A real server's, on 127.0.0.1."""
        assert self._server.port is not None
        return self._server.port

    @property
    def url(self) -> str:
        """The same server's."""
        return f"redis://127.0.0.1:{self.port}/0"

    def shop(self, **settings: Any) -> Shop:
        """An app with its locks in memory, where nothing is given back behind the stop's back."""
        # A line of the watchdog's thread would come at any time.
        self.patch.setattr(Watchdog, "release_later", lambda *_, **__: None)
        # Tasks that others of this process share with every app would be named as its own.
        own = {each for each in _state._on_app_finalizers if each.__module__ == builtins.__name__}
        self.patch.setattr(_state, "_on_app_finalizers", own)
        shop = Shop(**settings)
        self.later.callback(shop.app.close)
        self.later.callback(use_store, shop.app, None)
        return shop

    def configured(self, **settings: Any) -> Shop:
        """An app whose locks are where its settings say, under a prefix of their own."""
        self._prefix = f"tour-{secrets.token_hex(6)}"
        shop = self.shop(
            **{
                "redislock_prefix": self._prefix,
                "redislock_socket_timeout": _PATIENCE,
                "result_backend_transport_options": {},
                **settings,
            }
        )
        use_store(shop.app, None)
        return shop

    def put_a_list(self, name: str) -> None:
        """Keep something else where a lock of the shop would be, as another program might."""
        client = redis.Redis.from_url(self.url)
        self.later.callback(client.close)
        key = f"{self._prefix}:{{{name}}}:lock"
        client.delete(key)
        client.rpush(key, "something else")
        self.later.callback(client.delete, key)

    def url_of_user(self, *rules: str) -> str:
        """The real server's, for a user who may do everything but what these rules forbid."""
        client = redis.Redis.from_url(self.url)
        self.later.callback(client.close)
        client.acl_setuser(
            "tour", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", *rules], reset=True
        )
        self.later.callback(client.acl_deluser, "tour")
        return self.url.replace("://", "://tour:secret@")

    def directory(self) -> Path:
        """An empty directory, removed after the stop."""
        return Path(self.later.enter_context(tempfile.TemporaryDirectory()))

    def store(self, **options: Any) -> RedisStore:
        """Locks on the real server."""
        options = {"prefix": f"tour-{secrets.token_hex(6)}", "socket_timeout": _PATIENCE, **options}
        return self.later.enter_context(closing(connect(self.url, **options)))

    def lock(self, name: str, **options: Any) -> Lock:
        """A lock on the real server."""
        return Lock(self.store(), name, **options)

    def celery(self, app: Any, *words: str, named: bool = True) -> None:
        """Type ``celery -A proj redislock …``."""

        @click.group()
        @click.option("-A", "app")
        @click.pass_context
        def celery(ctx: click.Context, /, **_: str) -> None:
            ctx.obj = SimpleNamespace(app=app)

        celery.add_command(redislock, "redislock")
        self._type(celery, "celery", *(["-A", "proj"] if named else []), "redislock", *words)

    def standalone(self, *words: str) -> None:
        """Type ``celery-redislock …``."""
        self._type(main, "celery-redislock", *words)

    def say(self, error: BaseException) -> None:
        """Note an error as the last line of a traceback does."""
        self.said.append(f"{type(error).__name__}: {error}")

    def in_child(self, act: Callable[[], object]) -> None:
        """Act in a forked child, and note what it says."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, Python 3.12
            pid = os.fork()
        if not pid:
            before = set(self._passed)
            try:
                act()
            except Exception as error:  # noqa: BLE001  that is what it is for
                self.say(error)
            new = [(site.file, site.line) for site in self._passed - before]
            os.write(writer, json.dumps([self.said, new]).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            self.said[:], passed = json.load(answer)
        os.waitpid(pid, 0)
        self._passed |= {site for site in all_sites() if [site.file, site.line] in passed}

    def _type(self, program: click.Group, name: str, *words: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                program.main([*words], prog_name=name)
            except SystemExit as end:
                status = end.code
        lines = [
            line for line in err.getvalue().splitlines() if line and not line.startswith(("Usage", "Try"))
        ]
        self.said.append("\n".join([f"$ {name} {shlex.join(words)}", *lines, f"(exit status {status})"]))


@contextmanager
def sayings(server: EmbeddedServer, passed: set[Site]) -> Iterator[Guide]:
    """A guide for one stop, listening to the package's log until it is over.

    Args:
        server: a real one.
        passed: the sites passed so far, for a forked child to add to.
    """
    guide = Guide(server, passed)
    ear = _Ear(guide.said)
    before = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(ear)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    try:
        with guide.later:
            try:
                yield guide
            except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, it was said
                guide.say(error)
    finally:
        guide.patch.undo()
        LOGGER.level, LOGGER.propagate = before
        LOGGER.removeHandler(ear)


def no_broker(*_: object, **__: object) -> None:
    """Stand in for whatever publishes a message."""
    message = "the broker refused the connection"
    raise ConnectionError(message)


class _Ear(logging.Handler):
    """Notes log lines; of a traceback its last line."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.INFO)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        lines = [f"{record.levelname}: {record.getMessage()}"]
        if record.exc_info and record.exc_info[1] is not None:
            lines += ["Traceback (most recent call last): ...", f"{_last_line(record.exc_info[1])}"]
        self._said.append("\n".join(lines))


def _last_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
