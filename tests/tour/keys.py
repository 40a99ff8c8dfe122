"""Keys.

A key is made of a call's arguments, as the worker will see them: [keys.md](keys.md).
"""

from collections.abc import Mapping
from typing import Any

from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


def sync(account_id: Any, amount: Any = 0) -> None:
    """What every task here takes."""


def of_nothing(arguments: Mapping[str, object]) -> object:
    """A lock_key that forgot to return."""


def of_a_parent(arguments: Mapping[str, object]) -> object:
    """A lock_key that asks for what is not there."""
    return f"account:{arguments['parent']}"


@stop("An argument that cannot be part of a key")
def unserialisable(guide: Guide) -> None:
    """Without `lock_key` all arguments are part of it, and JSON must be able to carry them."""
    guide.shop().unique(sync).delay(7, {1, 2})


@stop("An argument that names nothing")
def none_in_a_template(guide: Guide) -> None:
    """`None` would be one lock for all calls without a value."""
    guide.shop().unique(sync, lock_key="account:{account_id}").delay(None)


@stop("An argument whose text is no name")
def list_in_a_template(guide: Guide) -> None:
    """The text of a list, a mapping or an object says too little, or something else each time."""
    guide.shop().unique(sync, lock_key="account:{account_id}").delay([7, 8])


@stop("An argument without that part")
def part_that_is_not_there(guide: Guide) -> None:
    """Attributes and items are read as by `str.format`; a model arrives as a mapping."""
    task = guide.shop().unique(sync, lock_key="account:{account_id.number}")
    for argument in ({"id": 7}, 7):
        try:
            task.delay(argument)
        except ValueError as error:
            guide.say(error)
    task.apply_async(([7],), lock_key="account:{account_id[first]}")


@stop("A key that is empty")
def empty_key(guide: Guide) -> None:
    """Put a word in front of the field."""
    guide.shop().unique(sync, lock_key="{account_id}").delay("")


@stop("A callable that raises")
def callable_raises(guide: Guide) -> None:
    """It is called with one mapping of all parameters to their values; the error is the cause of this one."""
    guide.shop().unique(sync, lock_key=of_a_parent).delay(7)


@stop("A callable that returns no key")
def callable_returns_nothing(guide: Guide) -> None:
    """A text is a resource that tasks can share; a tuple stays with the task."""
    shop = guide.shop()
    try:
        shop.unique(sync, name="shop.sync1", lock_key=lambda _: ({1},)).delay(7)
    except ValueError as error:
        guide.say(error)
    shop.unique(sync, lock_key=of_nothing).delay(7)


@stop("A call that does not fit the task")
def call_without_names(guide: Guide) -> None:
    """With `typing=False` Celery publishes what does not fit the signature; such arguments have no names."""
    shop = guide.shop()
    for number, key in enumerate((("account_id",), "account:{account_id}")):
        task = shop.unique(sync, name=f"shop.sync{number or ''}", lock_key=key, typing=False)
        try:
            task.delay()
        except ValueError as error:
            guide.say(error)


@stop("The key on the server is something else")
def wrong_type(guide: Guide) -> None:
    """Another program keeps a list, a hash or the like under the name of the lock."""
    task = guide.configured(redislock_url=guide.url).unique(sync, lock_key="account:{account_id}")
    guide.put_a_list("account:7")
    task.delay(7)


@stop("The key on the server is something else, and its kind may not be asked for")
def wrong_type_without_permission(guide: Guide) -> None:
    """The server's user is not allowed the command `TYPE`."""
    shop = guide.configured(redislock_url=guide.url_of_user("-type"))
    guide.put_a_list("account:7")
    shop.unique(sync, lock_key="account:{account_id}").delay(7)
