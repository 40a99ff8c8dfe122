"""Fingerprints: what the worker sees as equal has one, in every process."""

import json
import os
import random
import subprocess
import sys
import uuid
from collections import OrderedDict
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import pytest
from kombu.utils.json import dumps as kombu_json
from pydantic import BaseModel

from celery_redislock.declaring.keys.digest import digest
from celery_redislock.exceptions import LockKeyError
from tests.unit.declaring.keys.values import Colour, Custom, Plain, Size


class Order(BaseModel):
    id: int
    lines: list[str] = []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        ({2: "a", 10: "b"}, {"10": "b", "2": "a"}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"outer": {"a": 1, "b": (2,)}}, {"outer": {"b": [2], "a": 1}}),
        (OrderedDict(a=1), {"a": 1}),
        ({True: 1}, {"true": 1}),
        ({None: 1}, {"null": 1}),
        ({1: "a", "b": 2, None: 3, 2.5: 4}, {"b": 2, "1": "a", "2.5": 4, "null": 3}),
        ({True: "a", 2.5: "b"}, {"2.5": "b", "true": "a"}),
        ({False: "a", -5: "b", 0.5: "c"}, {"-5": "b", "0.5": "c", "false": "a"}),
        ({float("inf"): 1, float("-inf"): 2, 5: 3}, {"-Infinity": 2, "5": 3, "Infinity": 1}),
        ([{"deep": {Size.BIG: 1, 10: 2}}], [{"deep": {"10": 2, "3": 1}}]),
        (Custom(4), {"number": 4}),
        (Colour.RED, "red"),
        ({"size": Size.BIG}, {"size": 3}),
        (Order(id=1, lines=["a"]).model_dump(mode="json"), {"lines": ["a"], "id": 1}),
    ],
)
def test_what_the_worker_sees_as_equal_has_one_digest(one, other):
    """The serializer decides what is equal."""
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((1, other) for other in (1.0, True, "1")),
        (0, None),
        (Decimal("1.2"), Decimal("1.20")),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (b"x", "x"),
        (date(2024, 1, 1), datetime(2024, 1, 1)),
        ("é", "e\u0301"),
        ([1, [2]], [[1], 2]),
        ({"a": None}, {}),
        (0.0, -0.0),
        (float("nan"), None),
    ],
)
def test_what_the_worker_can_tell_apart_has_two_digests(one, other):
    assert digest(one) != digest(other)


def made_up(dice, depth=3):
    """Any value that JSON can carry, with keys of every kind."""
    kind = dice.randrange(4) if depth else 0
    if kind == 0:
        texts = ["", '{"1":2}', "é\ud800", b"x", Colour.RED]
        return dice.choice([*texts, 7, 10**30, 0.1, float("nan"), True, None, Decimal("1.20"), Custom(3)])
    many = range(dice.randrange(4))
    if kind == 1:
        return dice.choice([list, tuple])(made_up(dice, depth - 1) for _ in many)
    texts, numbers = ["a", "b", "tag", "1st", Colour.RED], [1, 2, 10, -3, 2.5, True, float("nan")]
    keys = dice.choice([texts, numbers, ["a", "2", 1, None, False]])
    return {dice.choice(keys): made_up(dice, depth - 1) for _ in many}


def test_every_value_has_the_digest_of_what_the_worker_sees():
    """One pass or two, in whichever order its mappings are: the fingerprint hangs on the JSON alone."""
    dice = random.Random(7)  # noqa: S311  repeatable, and no secret
    for _ in range(3000):
        value = made_up(dice)
        decoded = json.loads(kombu_json(value))
        sorted_text = json.dumps(decoded, sort_keys=True, separators=(",", ":"))
        assert digest(value) == digest(decoded) == sha256(sorted_text.encode()).hexdigest()[:32]


class Counted:
    """Counts how often it is encoded."""

    times = 0

    def __json__(self):
        self.times += 1
        return {"b": 1, "a": 2}


def test_an_argument_is_encoded_once():
    """Law 10: large nested arguments cost one pass, where their mappings have texts as keys."""
    counted = Counted()
    digest({"rows": [{"id": 1, "item": counted}], "account_id": 7})
    assert counted.times == 1


def test_a_digest_is_the_same_under_every_hash_seed():
    """Two processes with other hash seeds compute one digest and one name."""
    script = (
        "import uuid, decimal; from celery_redislock.declaring.keys import digest, parse_key;"
        "value = {'b': {'y': [1, (2, 3)], 'x': uuid.UUID(int=7)}, 'a': {5: 1, 'z': decimal.Decimal('1.5')}};"
        "print(digest(value), parse_key(('b', 'a'), task_name='t', parameters=None)(value))"
    )
    command, root = [sys.executable, "-c", script], Path(__file__).parents[4]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "4242")]
    assert len({subprocess.check_output(command, cwd=root, env=environment) for environment in seeds}) == 1


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "culprit", [{1, 2}, object(), Plain.ONE, {(1, 2): 3}, [{"deep": {1}}], range(3), ENDLESS], ids=type
)
def test_an_argument_that_cannot_be_sent_is_named(culprit):
    """The error says which argument, of which type, and what to do."""
    with pytest.raises(LockKeyError) as refusal:
        digest({"account_id": 1, "note": culprit}, where="shop.sync")
    assert refusal.value.where == "shop.sync"
    assert f"argument 'note' ({type(culprit).__name__})" in str(refusal.value)
    assert "lock_key=" in str(refusal.value)
