"""A server on which the model's time passes, with the scripts as they are.

What they ask ``TIME`` for, they read from a key. What lives for a time is made to live for less when time
passes.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import count
from math import inf
from typing import Any, NamedTuple

import redis

from celery_redislock.locks import connect
from celery_redislock.store.joined import joined_on_server
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Entry, Merge
from celery_redislock.wire.scripts import digested
from tools.explore.acts import OVERWRITE, THEIRS
from tools.explore.clients import Asked
from tools.explore.world import Copy, State

PREFIX = "explored"

#: The lines that are looked at, with when; and milliseconds to which that is rounded: the model knows nothing
#: of those that requests take, and by which a server looks later at what ends.
LINES = f"{PREFIX}:lines"
ROUND = 100

#: Keys of the broker.
BROKERS = frozenset({"q", "unacked"})

#: Seconds that a mark lives of which the model says that it never ends.
FOR_EVER = 1_000_000.0

#: Milliseconds that requests may take, of which the model knows nothing: what lives for less has ended.
SLACK = 300

_VERSIONS = (("Valkey", "valkey_version"), ("Redis", "redis_version"))

_CLOCK = """local function model_time()
  local us = redis.call('GET', 'clock')
  return {string.sub(us, 1, -7), string.sub(us, -6)}
end
"""
_TIME = re.compile(r"(redis\.)?call\('TIME'\)")

_TAKE_OUT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key ~= 'clock' then
    local kind, value = redis.call('TYPE', key).ok
    if kind == 'string' then
      value = redis.call('GET', key)
    elseif kind == 'hash' then
      value = redis.call('HGETALL', key)
    elseif kind == 'zset' then
      value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    else
      value = redis.call('LRANGE', key, 0, -1)
    end
    found[#found + 1] = {key, redis.call('PTTL', key), redis.call('DUMP', key), value}
  end
end
return found
"""


class Key(NamedTuple):
    """A key of the server: how many ms it lives, -1 for ever; as ``DUMP`` has it; and its value."""

    name: str
    pttl: int
    dump: bytes
    value: Any


class Server:
    """A server of nobody else: it is emptied before each step, and what is to be there is put back.

    Attributes:
        version: of it, with its name.
    """

    def __init__(self, url: str, text: str = "", instead: str = "") -> None:
        """Ask this server with scripts that read the model's clock.

        *text*: of a script; has this *instead*, to break it on purpose.
        """
        self._client = redis.Redis.from_url(url)
        told = self._client.info("server")
        self.version = next(f"{name} {told[key]}" for name, key in _VERSIONS if key in told)
        self._nonces = count()
        self._take_out = self._client.register_script(_TAKE_OUT)
        store = connect(url, prefix=PREFIX)
        assert isinstance(store, RedisStore)
        self._stores = {False: store, True: joined_on_server(store)}
        unknown = bool(text)
        for each in self._stores.values():
            scripts = each._scripts._scripts
            changed = {name: of.replace(text, instead) if text else of for name, (of, _) in scripts.items()}
            unknown = unknown and all(changed[name] == of for name, (of, _) in scripts.items())
            scripts.update({name: _with_model_time(of) for name, of in changed.items()})
        assert not unknown, f"no script has this text: {text}"

    def live_beside(self, homes: str) -> None:
        """Let clients have these homes; '' for the server as the broker."""
        for store in self._stores.values():
            if store.home != homes:
                self._stores[False].home = homes

    def put(self, keys: Iterable[Key], state: State) -> None:
        """Let it keep these keys; in those of the broker, what waits in this state, and what is in hand."""
        sends = dict(state.store.sends)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key in keys:
                if key.name not in BROKERS:
                    pipe.restore(key.name, max(0, key.pttl), key.dump)
                if key.name == LINES:
                    pairs = zip(key.value[::2], key.value[1::2], strict=True)
                    pipe.zadd(LINES, {name: ROUND * round(float(at) / ROUND) for name, at in pairs})
            for copy in state.queue:
                pipe.rpush("q", _pushed(copy, sends.get(copy.token, (0, 0))[0]))
            for run in state.runs:
                if run.copy.parked:
                    pipe.hset("unacked", _tag(run.copy.token, sends.get(run.copy.token, (0, 0))[0]), "1")
            pipe.execute()

    def look_at_all(self) -> None:
        """Let the time have come of each line."""
        if names := self._client.zrange(LINES, 0, -1):
            self._client.zadd(LINES, dict.fromkeys(names, 0))

    def take(self) -> list[Key]:
        """Return its keys."""
        found = self._take_out()
        return sorted(Key(key.decode(), pttl, dump, value) for key, pttl, dump, value in found)

    def ask(self, asked: Asked, now: int, numbers: Mapping[int, int]) -> Any:
        """Send a request at this time of the server's clock, in us."""
        self._client.set("clock", now)
        rest = [_at_time(each, now, numbers) for each in asked.rest]
        more = {key: _at_time(each, now, numbers) for key, each in asked.more.items()}
        if "nonce" in more:
            more["nonce"] = f"n{next(self._nonces)}"
        if asked.verb == "newest" and rest[3] is not None:
            rest[3] = numbers[rest[3]]
        if asked.verb == OVERWRITE:
            return self._overwrite(*rest)
        store = self._stores[bool(rest) and " " in rest[0]]
        answer = getattr(store, asked.verb)(*rest, **more)
        if asked.verb == "mark_done":
            store.holders(rest[0])  # its answer is not awaited; that of the next request is
        return answer

    def _overwrite(self, name: str, ttl: float) -> None:
        self._client.set(f"{PREFIX}:{{{name}}}:lock", THEIRS, px=round(1000 * ttl))


def _with_model_time(text: str) -> tuple[str, str]:
    return digested(_CLOCK + _TIME.sub("model_time()", text))


def _at_time(value: Any, now: int, numbers: Mapping[int, int]) -> Any:
    """Return an argument as a client has it at this time."""
    if isinstance(value, Entry):
        text = _text(value.text, 1) if value.kind == "push" else value.text
        return value._replace(facts=_at_time(value.facts, now, numbers), text=text)
    if isinstance(value, str):
        return value.replace('"since":0', f'"since":{now // 1_000_000}')
    if isinstance(value, Merge):
        number = None if value.number is None else numbers[value.number]
        return value._replace(number=number, mark_ttl=_at_time(value.mark_ttl, now, numbers))
    return FOR_EVER if value == inf else value


def _text(copy: str, times: int) -> str:
    """Return a message as it is pushed for the n-th time (``lua/sent.lua``)."""
    return f'{{"delivery_tag": "{_tag(Copy.loads(copy).token, times)}", "copy": "{copy}"}}'


def _tag(token: str, times: int) -> str:
    return token if times < 2 else f"{token}~{times}"


def _pushed(copy: Copy, times: int) -> str:
    return _text(copy._replace(earlier=False).dumps(), times) if copy.parked else copy.dumps()


def later(keys: list[Key], ms: int) -> list[Key]:
    """Return keys as they are so many milliseconds later."""
    for_ever = [key for key in keys if key.pttl < 0]
    return for_ever + [key._replace(pttl=key.pttl - ms) for key in keys if key.pttl > ms + SLACK]
