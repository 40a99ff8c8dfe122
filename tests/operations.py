"""Which operation of the lock store a request on the wire is."""

import json

from celery_redislock.store.joined import OF_SEVERAL
from celery_redislock.store.redisstore import SCRIPTS
from celery_redislock.wire.scripts import script

#: What a task's life asks the lock server for.
OPERATIONS = ("claim", "start", "renew", "release", "hand_on", "inspect", "mark_done")
#: What is more than one of them, where they share a server with the messages or the results.
IN_ONE_STEP = {"claim_and_push": "claim", "release_and_store": "release"}
#: All that a request can be told as: an acquire is one of the first two of the above.
TOLD = frozenset({*OPERATIONS, *SCRIPTS, *OF_SEVERAL}) - {"acquire"}


def operation_of(request: bytes) -> str | None:
    """Return the operation, ``None`` for anything but a call of the store's scripts or a mark.

    One acquire script serves a publisher's claim and a run's start. Kombu's own scripts are no operations: a
    broker that does not answer one holds a plain worker up for ever as well (5.7.0, ``sweep_bindings``).
    """
    words = request.split(b"\r\n")[2::2]
    if len(words) > 1 and words[0] == b"SET" and b":mark:" in words[1]:
        return "mark_done"
    if len(words) < 3 or words[0] not in {b"EVALSHA", b"EVAL"}:
        return None
    name = _NAMES.get(words[1].decode())
    if name != "acquire":
        return name
    value = words[3 + int(words[2]) :]
    try:
        return "start" if json.loads(value[0].partition(b"\0")[2]).get("state") == "running" else "claim"
    except (IndexError, ValueError):
        return None  # a request longer than what was received at once


#: By text and by digest.
_NAMES = {word: name for name in (*SCRIPTS, *OF_SEVERAL) for word in script(name, "celery_redislock.store")}
