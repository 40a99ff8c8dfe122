"""What others wrote into a lock's key: nobody who reads it is hindered by it, whatever it is."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from click.testing import CliRunner

from celery_redislock.cli import redislock
from tests.unit.shop import KEY, Shop, body

DEEP = "[" * 100_000
NESTED = "[" * 300 + "]" * 300
HUGE = "9" * 400

SINCES = [
    *("NaN", "Infinity", "-Infinity", HUGE, f"-{HUGE}", "1e308", "-1e308"),
    *("-1", "1e12", "0", '"x"', "true", "{}"),
]

OBEYED = r'"\u001b[2J\nx\u009b\u202e\ud800"'

ODDITIES = ["null", "false", "-0.0", "NaN", HUGE, '""', OBEYED, '["queued"]', '{"a":[]}', NESTED]

#: What a holder "wrote" about itself: the JSON of its value.
ABOUTS = [
    "",
    DEEP,
    '{"a":' * 100_000,
    "[1]",
    '"text"',
    "NaN",
    HUGE * 20,
    *(f'{{"task":"shop.sync","state":"queued","since":{since}}}' for since in SINCES),
    *(
        f'{{"task":{odd},"id":{odd},"host":{odd},"pid":{odd},"state":{odd},"ignored":{odd},"message":{odd}}}'
        for odd in ODDITIES
    ),
]


@pytest.mark.parametrize(
    ("about", "owner", "expires_in"),
    [
        *((about, "t0", 30.0) for about in ABOUTS),
        ("{}", "\x1b[2J\nroot\x9b", 9.2e15),
        (f'{{"state":{OBEYED}}}', "", float("inf")),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_nobody_fails_at_what_another_program_wrote(
    shop: Shop, caplog: Any, about: str, owner: str, expires_in: float
) -> None:
    """Law 9: a publish, a worker, ``holder()`` and the commands take it for somebody, no terminal obeys."""
    caplog.set_level(logging.INFO, logger="celery_redislock")
    task = shop.unique(body, lock_key="account:{account_id}")
    shop.store._keep(KEY, f"{owner}/nonce\0{about}".encode(), expires_in)

    assert task.delay(7).is_duplicate
    shop.app.send_task(task.name, (7,), task_id="unclaimed")
    assert isinstance(shop.run(), Ignore)
    assert not task.apply_async((7,), on_conflict="retry").is_duplicate
    assert isinstance(shop.run(), Ignore)
    assert len(shop.messages()) == 1  # it waits

    handle = task.lock_for(7)
    seen = handle.holder()
    assert seen.owner == (owner or "/nonce")
    assert {type(seen.task), type(seen.host)} <= {str, type(None)}
    outputs = [_output(shop, *words) for words in (["list"], ["explain", "--quick", KEY])]
    for words in (["list", "--json"], ["explain", "--quick", "--json", KEY]):
        json.loads(_output(shop, *words), parse_constant=pytest.fail)
    outputs.append(_output(shop, "release", KEY, "--yes", "--reason", "why\x1b[2J\n"))
    assert handle.holder() is None
    shop.store._keep(KEY, f"{owner}/nonce\0{about}".encode(), expires_in)
    assert handle.release(reason="why\x1b[2J\n") is not None
    audits = [line for line in caplog.messages if "by force" in line]
    assert len(audits) == 2
    assert all(line.isprintable() for text in outputs for line in [*text.split("\n"), *audits])


def _output(shop: Shop, *words: str) -> str:
    result = CliRunner().invoke(redislock, words, obj=SimpleNamespace(app=shop.app))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output
