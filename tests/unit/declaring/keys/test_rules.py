"""The laws of lock names: equal calls meet, different ones never do, and names never move."""

import json
import pickle
import random
import string
import uuid
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from kombu.utils.json import loads

from celery_redislock.declaring.keys import Resources, digest, escape, parse_key
from celery_redislock.declaring.keys.template import parse_template
from celery_redislock.exceptions import LockKeyError, LockOptionError
from tests.unit.declaring.keys.values import Colour, Custom, Plain, Size

GOLDEN = Path(__file__).with_name("golden_keys.json")
PARAMETERS = ("account_id", "order", "items", "note")


def seeded(seed):
    return random.Random(seed)  # noqa: S311  repeatable, and no secret


def rule(lock_key, parameters=PARAMETERS):
    return parse_key(lock_key, task_name="shop.sync", parameters=parameters)


def name(lock_key, **arguments):
    return rule(lock_key)(arguments)


def problems(lock_key, parameters=PARAMETERS):
    with pytest.raises(LockOptionError) as refusal:
        rule(lock_key, parameters)
    return refusal.value.problems


# --- per task --------------------------------------------------------------------------------


def test_several_resources_are_named_each_once_and_in_one_order():
    """Calls that name the same ones, in any order, meet; a copy of the declaration names them too."""
    both = Resources("account:{account_id}", "account:{order}")
    assert name(both, account_id=2, order=1) == name(both, account_id=1, order=2) == "account:1 account:2"
    assert name(both, account_id=1, order=1) == name("account:{account_id}", account_id=1)
    assert name(pickle.loads(pickle.dumps(both)), account_id=1, order=2) == "account:1 account:2"  # noqa: S301
    assert "'nothing', which the task does not have" in problems(Resources("a:{nothing}"))[0]
    with pytest.raises(LockOptionError, match="name each by a text"):
        Resources()


def test_the_default_key_is_the_task_and_all_its_arguments():
    assert name(None, account_id=1) == f"shop.sync:v1:{digest({'account_id': 1})}"
    assert name(None, account_id=1) != name(None, account_id=2)
    assert parse_key(None, task_name="other", parameters=None)({}) != name(None)
    odd = parse_key(None, task_name="my {odd} task", parameters=())
    assert odd({}).startswith("my%20%7Bodd%7D%20task:v1:")
    long = parse_key(None, task_name="pkg." * 60 + "task", parameters=None)
    assert len(long({"a": 1})) <= 200
    assert long({"a": 1}) != long({"a": 2})


@pytest.mark.parametrize("nothing", [(), [], lambda _: ()], ids=["tuple", "list", "callable"])
def test_a_key_of_no_arguments_is_the_task_whatever_they_are_and_no_other_task(nothing):
    """Also where it is declared on a base class of many tasks."""
    assert name(nothing, account_id=1) == name(nothing, account_id={2}) == "shop.sync:v1:all"
    assert parse_key(nothing, task_name="shop.other", parameters=())({}) == "shop.other:v1:all"
    long = [parse_key(nothing, task_name="pkg." * 60 + name, parameters=())({}) for name in ("a", "b")]
    assert len({*long}) == 2
    assert max(map(len, long)) <= 200


def test_named_arguments_decide_alone():
    """A tuple or list of names ignores all others, and its order does not matter."""
    assert name(("account_id",), account_id=1, note="a") == name(["account_id"], account_id=1, note={"b"})
    both = name(("account_id", "note"), account_id=1, note=2)
    assert both == name(("note", "account_id"), account_id=1, note=2)
    assert both != name(("account_id", "note"), account_id=2, note=1)


# --- resources -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("account:{account_id}", "account:42"),
        ("{account_id}", "42"),
        ("acc {{x}} {account_id}", "acc%20%7Bx%7D%2042"),
        ("{{a}}:{account_id}:{{b}}:{items[0]}", "%7Ba%7D:42:%7Bb%7D:first"),
        ("o:{order.id}", "o:7"),
        ("o:{order[id]}", "o:7"),
        ("o:{order.lines[1].sku}", "o:B%3A2"),
        ("o:{order.uid.hex}", "o:00000000000000000000000000000005"),
        ("i:{items[0]}:{items[1][0]}", "i:first:9"),
        ("n:{note}", "n:café"),
        ("{order.uid}-{account_id}", "00000000%2D0000%2D0000%2D0000%2D000000000005-42"),
    ],
)
def test_a_template_names_a_resource(template, expected):
    arguments = {
        "account_id": 42,
        "order": {"id": 7, "uid": uuid.UUID(int=5), "lines": [{"sku": "A"}, {"sku": "B:2"}]},
        "items": ("first", (9,)),
        "note": "café",
    }
    assert rule(template)(arguments) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.5, "1.5"),
        (True, "True"),
        (Decimal("1.20"), "1.20"),
        (Colour.RED, "red"),
        (Size.BIG, "3"),
        (date(2024, 2, 3), "2024-02-03"),
        (datetime(2024, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1))), "2024-02-03T04%3A05%3A00+01%3A00"),
        ("a:b%{c}\x00\n\u2028\x85 d", "a%3Ab%25%7Bc%7D%00%0A%E2%80%A8%C2%85%20d"),
        ("\ud800", "%ED%A0%80"),
        ("Ωμέγα-🔒", "Ωμέγα-🔒"),
    ],
)
def test_values_are_escaped_and_stay_readable(value, text):
    assert name("account:{account_id}", account_id=value) == f"account:{text}"


def test_a_resource_is_shared_by_every_task_that_names_it():
    """Template, fixed text and callable agree on one account."""
    names = {
        parse_key(key, task_name=task, parameters=None)({"account_id": 42})
        for task in ("a", "b")
        for key in ("account:{account_id}", "account:42", lambda a: f"account:{a['account_id']}")
    }
    assert names == {"account:42"}
    assert name("two words", account_id=1) == name("two words", account_id=2) == "two%20words"


def test_an_object_that_travels_by_another_serializer_is_read_itself():
    """Pickle delivers the object; JSON could not have sent it."""

    class Basket:
        number = 9

    assert name("basket:{order.number}", order=Basket()) == "basket:9"


def test_two_tuples_of_values_never_share_a_name():
    """Whatever the values contain, the separators tell them apart."""
    dice = seeded(11)
    alphabet = "ab:-_/%{} 2357C\n.é\u2028"
    templates = [
        "a:{x}:{y}",
        "{x}-{y}",
        "{x}_b/{y}:{z}",
        "{x}a-a{y}",
        "{{{x}}}:{{{y}}}",
        "{x}%.{y} {{| {z}:c",
    ]
    for template in templates:
        key = parse_key(template, task_name="t", parameters=None)
        seen: dict[str, tuple[str, ...]] = {}
        for _ in range(4000):
            arguments = {letter: "".join(dice.choices(alphabet, k=dice.randint(0, 3))) for letter in "xyz"}
            used = tuple(arguments[field.parameter] for field in parse_template(template).fields)
            assert seen.setdefault(key(arguments), used) == used
        assert len(seen) > 1000


def test_escaping_never_makes_two_texts_one():
    dice = seeded(3)
    alphabet = string.printable + "é\u00a0\ud800"
    texts = {"".join(dice.choices(alphabet, k=dice.randint(0, 4))) for _ in range(20000)}
    assert len({escape(text) for text in texts}) == len(texts)
    assert not any(set(escape(text)) & set("{} \n\t\x00\x7f") for text in texts)


# --- long names ------------------------------------------------------------------------------


def test_a_long_name_ends_in_a_digest_of_all_of_it():
    """From 201 bytes on. Its beginning stays readable, and no short name looks like one."""
    names = [name("path:{note}", note="é" * 300 + tail) for tail in ("a", "b")]
    assert name("{note}", note="x" * 200) == "x" * 200
    assert name("{note}", note="x" * 201).startswith("x" * 166 + "%~")
    assert len(name("{note}", note="x" * 201)) == 200
    assert all(len(text.encode()) <= 200 and text.startswith("path:ééé") for text in names)
    assert names[0] != names[1]
    assert name("path:{note}", note=names[0].removeprefix("path:")) != names[0]
    assert name(names[0].replace("%", "{{}}")) != names[0]


# --- callables -------------------------------------------------------------------------------


def test_a_callable_gets_one_read_only_mapping_of_what_the_worker_sees():
    """Tuples are lists, keys are text, models their dumps: on the publisher as on the worker."""
    seen = []

    def key(arguments):
        seen.append(arguments)
        return "x"

    name(key, account_id=1, order=Custom(4), items=(1, {2: 3}), note=uuid.UUID(int=3))

    items = {"items": [1, {"2": 3}], "note": uuid.UUID(int=3)}
    assert dict(seen[0]) == {"account_id": 1, "order": {"number": 4}, **items}
    assert isinstance(seen[0], Mapping)
    with pytest.raises(TypeError):
        seen[0]["account_id"] = 2


def test_a_callable_names_a_resource_or_the_values_that_matter():
    assert name(lambda a: f"a {a['note']}", note="b") == "a%20b"
    assert name(lambda a: (a["note"], 1), note="b") == f"shop.sync:v1:{digest(['b', 1])}"


# --- calls without a name --------------------------------------------------------------------

LOOSE = {"args": [1], "kwargs": {}}


@pytest.mark.parametrize(
    ("lock_key", "arguments", "words"),
    [
        # Loosely bound arguments have no names.
        (("account_id",), LOOSE, "'account_id', which is not among 'args', 'kwargs'"),
        ("account:{account_id}", LOOSE, "'account_id', which is not among 'args', 'kwargs'"),
        # None is no resource; the text of a container hangs on its order, of an object on its address.
        ("a:{account_id}", {"account_id": None}, "lock_key {account_id} is None, which names no resource"),
        *(
            (
                "a:{account_id}",
                {"account_id": value},
                f"is of type {type(value).__name__}, whose text is no stable",
            )
            for value in ([1], {"a": 1}, b"x", {1}, object(), Plain.ONE)
        ),
        *(
            (template, {"order": {"id": 1}, "items": [1], "note": "n"}, "cannot be read")
            for template in ("{order.missing}", "{order[missing]}", "{items[9]}", "{items[x]}", "{note[0].a}")
        ),
        ("{account_id}", {"account_id": ""}, "is empty for these arguments"),
        (lambda a: a["missing"], {}, "raised KeyError: 'missing'"),
        # The user of a callable has named what matters already: other advice is no use.
        (lambda _: (frozenset({1}),), {}, "returned (frozenset({1}),); return values that JSON can carry"),
        *((lambda _, answer=answer: answer, {}, "returned") for answer in (None, "", "  ", 5, ["a"], b"x")),
    ],
)
def test_a_call_without_a_name_says_why(lock_key, arguments, words):
    with pytest.raises(LockKeyError) as refusal:
        rule(lock_key)(arguments)
    assert refusal.value.where == "shop.sync"
    assert words in refusal.value.problem


# --- what is refused when the task is bound --------------------------------------------------


@pytest.mark.parametrize("lock_key", [("acount_id",), ["acount_id"], "a:{acount_id}", "a:{acount_id.x[0]}"])
def test_an_unknown_parameter_gets_the_nearest_name(lock_key):
    assert "did you mean 'account_id'?" in problems(lock_key)[0]


def test_all_problems_of_a_key_are_told_at_once():
    assert len(problems(("a_1", 5, "b_2"))) == 3
    assert len(problems("{a_1}:{account_id}:{b_2}")) == 2


async def coroutine(arguments):
    return "x"


@pytest.mark.parametrize(
    ("lock_key", "words"),
    [
        # As a text it would be one lock for every account: most likely not meant.
        ("account_id", "did you mean ('account_id',) or 'account_id:{account_id}'?"),
        (("zzz",), "account_id, order, items, note"),
        (coroutine, "coroutine"),
        *((empty, "is empty") for empty in ("", "  ")),
        *(("a:{", "Single '{'"), ("a:{note", "expected '}'"), ("a:}", "Single '}'")),
        *((f"a:{{{field}}}", "no parameter's name") for field in ("", "0", "order.__class__", "order[]")),
        *((f"a:{{account_id{form}}}", "asks for a format") for form in ("!r", ":>8")),
        *((f"{{account_id}}{between}{{note}}", "put a separator") for between in ("", " ", "x2")),
        (5, "of type int"),
        ({"account_id"}, "of type set"),
        (str, "of type type"),
    ],
)
def test_a_key_that_cannot_be_honoured_says_why(lock_key, words):
    assert words in problems(lock_key)[0]


def test_names_stay_unchecked_where_the_signature_is_unknown():
    assert rule(("anything",), parameters=None)({"anything": 1})
    assert rule("anything", parameters=None)({}) == "anything"


# --- the golden file -------------------------------------------------------------------------


def test_names_in_the_wild_never_move():
    """Old and new workers run side by side: a key computed differently excludes nobody."""
    moved = []
    for case in json.loads(GOLDEN.read_text()):
        key, task = case["lock_key"], case["task"]
        arguments = loads(json.dumps(case["arguments"]))
        rule = parse_key(tuple(key) if isinstance(key, list) else key, task_name=task, parameters=None)
        if (rule(arguments), digest([task, arguments])) != (case["name"], case["digest"]):
            moved.append(case["about"])
    assert not moved, f"lock names changed; bump VERSION in celery_redislock.declaring.keys.rules: {moved}"
