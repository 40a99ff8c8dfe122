"""Arguments by name: every spelling of a call meets, and only what Python accepts is bound."""

import random
import re
import sys
from functools import partial, wraps

import pytest

from celery_redislock.declaring.keys import Binder, parse_key


def sync(account_id, full=False, *, note=None):
    """A body with every simple kind of parameter."""


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((7,), {}), ((), {"account_id": 7}), ((7, False), {}), ((7,), {"full": False, "note": None})],
)
def test_every_spelling_of_a_call_binds_to_the_same_arguments(args, kwargs):
    """Positional = keyword = default spelled out."""
    bound = Binder(sync).bound(*args, **kwargs)
    assert bound == {"account_id": 7, "full": False, "note": None}
    assert list(bound) == ["account_id", "full", "note"]


def echo(a, b=2, c=3, *, d, e=5):
    return {"a": a, "b": b, "c": c, "d": d, "e": e}


def echo_all(a, /, b=2, *c, d=4, **e):
    return {"a": a, "b": b, "c": [*c], "d": d, "e": e}


@pytest.mark.parametrize("body", [echo, echo_all])
def test_arguments_are_bound_as_the_interpreter_binds_them(body):
    """Whatever Python accepts is bound as Python binds it, and nothing else is accepted."""
    dice = random.Random(5)  # noqa: S311  repeatable, and no secret
    accepted = 0
    binder = Binder(body)
    for _ in range(3000):
        args = tuple(range(10, 10 + dice.randint(0, 4)))
        kwargs = {key: key for key in "abcdef" if dice.random() < 0.4}
        try:
            expected = body(*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError):
                binder.bound(*args, **kwargs)
            # Python 3.13.0 misses a positional-only one (inspect.py), and a caller has the error's own words.
            missed = str(error) if sys.version_info[:2] == (3, 13) else ""
            assert re.search(r"argument|parameter", binder.misfit(args, kwargs) or missed)  # that say which
        else:
            accepted += 1
            assert binder.bound(*args, **kwargs) == expected
            assert not binder.misfit(args, kwargs)
    assert 100 < accepted < 2900
    assert binder.parameters == tuple("abcde")


def test_any_default_is_bound_as_it_is():
    """A default need not have a text that makes it again, nor a parameter a name that is free."""
    strange = object()

    def body(defaults=strange, *, list=[strange]):  # noqa: A002, B006  that is what is tested
        """Do nothing."""

    bound = Binder(body).bound()

    assert (bound["defaults"], bound["list"][0]) == (strange, strange)


def test_wrapped_and_partial_bodies_are_looked_through():
    """Autoretry and pydantic wrap the body and keep ``__wrapped__``."""

    @wraps(sync)
    def wrapper(*args, **kwargs):
        return sync(*args, **kwargs)

    assert Binder(wrapper).parameters == ("account_id", "full", "note")
    assert Binder(partial(sync, full=True)).bound(1)["full"] is True
    assert Binder(partial(sync, 1)).parameters == ("full", "note")


def test_a_body_without_a_signature_is_bound_loosely():
    """Some built-ins have none; they still have a default key."""
    uninspectable = Binder(max)
    assert uninspectable.parameters is None
    assert uninspectable.bound(1, 2, key=len) == {"args": [1, 2], "kwargs": {"key": len}}
    assert uninspectable.bound() == {"args": [], "kwargs": {}}


def test_loosely_bound_arguments_have_a_default_key():
    """``typing=False`` lets calls through that do not fit; they are unique too."""
    loose = Binder(sync).bind_loosely((1, 2, 3, 4), {"x": 5})
    rule = parse_key(None, task_name="shop.sync", parameters=None)
    assert rule(loose) == rule({"kwargs": {"x": 5}, "args": (1, 2, 3, 4)})
