"""Which operation of the lock store a request on the wire is."""

import json
from collections.abc import Sequence

from celery_redislock.locks.scripts import SCRIPTS, Script

__all__ = ["OPERATIONS", "TOLD", "operation_of"]

#: What a task's life asks the lock server for.
OPERATIONS = ("claim", "start", "renew", "release", "transfer", "inspect", "mark_done")
#: All that a request can be told as: an acquire is one of three of the above.
TOLD = frozenset({*OPERATIONS, *SCRIPTS}) - {"acquire"}


def operation_of(request: bytes) -> str | None:
    """Return the operation, ``None`` for anything but a script call.

    One acquire script serves a publisher's claim, a run's start and the transfer to a retry; one release
    script gives back and writes done marks.
    """
    words = request.split(b"\r\n")[2::2]
    if len(words) < 3 or words[0] not in {b"EVALSHA", b"EVAL"}:
        return None
    name = _NAMES.get(words[1].decode(), "unknown")
    args = words[3 + int(words[2]) :]
    if name == "acquire":
        return _acquire(args)
    return "mark_done" if name == "release" and args[0].endswith(b"/done") else name


def _acquire(args: Sequence[bytes]) -> str:
    _token, _ttl, about, instead_of = args[:4]
    if json.loads(about).get("state") == "running":
        return "start"
    return "transfer" if instead_of else "claim"


_SCRIPTS = {name: Script.load(name) for name in SCRIPTS}
_NAMES = {
    **{script.sha: name for name, script in _SCRIPTS.items()},
    **{script.text: name for name, script in _SCRIPTS.items()},
}
