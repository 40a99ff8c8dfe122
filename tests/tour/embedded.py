"""The embedded server.

`from celery_redislock.embedded import EmbeddedServer`: for demos, tests and development.
"""

import os
import sys

from celery_redislock.embedded import EmbeddedServer, binary, launch
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


@stop("No server program is found")
def none_found(guide: Guide) -> None:
    """Looked for are the one in the extra `embedded`, `valkey-server` and `redis-server`."""
    guide.patch.setattr(binary, "_carried", lambda: iter(()))
    guide.patch.setenv("PATH", "")
    EmbeddedServer()


@stop("The named program does not exist")
def named_does_not_exist(guide: Guide) -> None:
    """Only the named one is looked for."""
    EmbeddedServer(binary="valkey-sever")


@stop("A port that is none")
def no_port(guide: Guide) -> None:
    """`None` for a unix socket only, 0 for any free port."""
    EmbeddedServer(port=70000)


@stop("Another system")
def another_system(guide: Guide) -> None:
    """On Windows."""
    guide.patch.delattr(os, "register_at_fork")
    EmbeddedServer()


@stop("No Python program")
def no_python(guide: Guide) -> None:
    """Python is embedded in another program, and does not know its own."""
    guide.patch.setattr(sys, "executable", "")
    EmbeddedServer().start()


@stop("It is not started")
def not_started(guide: Guide) -> None:
    """Its address is known from its start on."""
    assert EmbeddedServer().url


@stop("It cannot start")
def cannot_start(guide: Guide) -> None:
    """What the server wrote last follows, up to twelve lines."""
    program = guide.directory() / "server"
    program.write_text("#!/bin/sh\necho 'Bad directive or wrong number of arguments'\nexit 1\n")
    program.chmod(0o700)
    EmbeddedServer(binary=str(program)).start()


@stop("It does not answer")
def does_not_answer(guide: Guide) -> None:
    """Half a minute is allowed, for a long append-only file."""
    program = guide.directory() / "server"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    guide.patch.setattr(launch, "_START_TIMEOUT", 1.0)
    EmbeddedServer(binary=str(program)).start()


@stop("Its keeper is gone")
def keeper_gone(guide: Guide) -> None:
    """Somebody killed the small process between the server and yours."""
    server = guide.later.enter_context(EmbeddedServer())
    assert server._launch is not None
    server._launch._shim.kill()
    server._launch._shim.wait()
    server.pause()


@stop("A forked child controls it")
def forked_child(guide: Guide) -> None:
    """A child may use the server, but only its own process stops, kills or pauses it."""
    with EmbeddedServer() as server:
        guide.in_child(server.pause)
