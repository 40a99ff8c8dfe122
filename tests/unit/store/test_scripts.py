"""Every script says what it takes and gives, and none says ``#!lua``."""

import re
from importlib.resources import files

import pytest

from celery_redislock.scheduling.state import SCRIPTS as OF_TICKS
from celery_redislock.store.cluster import OF_SLOTS
from celery_redislock.store.joined import OF_SEVERAL
from celery_redislock.store.redisstore import SCRIPTS
from celery_redislock.wire.scripts import script
from tests.pages import acl_rule

STORE = "celery_redislock.store"
LUA = files(STORE) / "lua"

#: These are only included by others.
INCLUDED = {
    "each", "entry", "found", "history", "index", "keys", "line", "merge", "permits",
    "place", "rate", "refusal", "sent",
    "told",
}  # fmt: skip


def test_the_scripts_are_exactly_the_files() -> None:
    """Those of ticks stand in the beat process's room, and may use those of locks."""
    of_ticks = files("celery_redislock.scheduling") / "lua"
    assert sorted({*SCRIPTS, *OF_SEVERAL, *OF_SLOTS, *INCLUDED}) == sorted(
        each.name.removesuffix(".lua") for each in LUA.iterdir()
    )
    assert sorted({*OF_TICKS} - {*SCRIPTS}) == sorted(
        each.name.removesuffix(".lua") for each in of_ticks.iterdir()
    )


def test_a_room_has_its_own_scripts_and_includes_those_of_locks() -> None:
    rooms = ("celery_redislock.scheduling", STORE)
    assert "local function list(index" in script("tick_take", *rooms)[0]
    assert script("names", *rooms) == script("names", STORE)
    with pytest.raises(FileNotFoundError):
        script("tick_take", STORE)


#: The one script that looks at keys it does not know, for an operator's check.
LOOKS_AROUND = {"survey": ("'SCAN'", "")}


@pytest.mark.parametrize("name", [*SCRIPTS, *OF_SEVERAL, *OF_SLOTS])
class TestEachScript:
    def test_it_has_no_shebang(self, name: str) -> None:
        """Redis refuses a script with one when memory is short, also if it only releases."""
        assert "#!" not in script(name, STORE)[0]

    def test_it_returns_numbers_and_strings_only(self, name: str) -> None:
        """Booleans, maps and doubles differ between protocols 2 and 3; time units are milliseconds."""
        text = re.sub(
            r"\n  function .*?\n  end\n", "", script(name, STORE)[0], flags=re.S
        )  # no answers of the script
        assert not re.search(r"return\s+(?:true|false|nil)\b|\bresp\(|setresp|double|\bmap\b", text)
        assert not re.search(
            r"'(?:EX|EXPIRE|TTL|KEYS|SCAN)'", text.replace(*LOOKS_AROUND.get(name, ("", "")))
        )

    def test_it_is_named_by_its_digest(self, name: str) -> None:
        assert re.fullmatch(r"[0-9a-f]{40}", script(name, STORE)[1])


#: What an operator's check calls, which does without it.
OF_A_CHECK = {"SCAN"}

#: What a script calls only where the lock server is the broker, or the result backend, as their user.
OF_SHARED_SERVERS = {"LPOS", "LLEN", "GETRANGE", "SETEX", "PUBLISH"}


def test_the_user_of_the_pages_may_run_each_command_that_a_script_calls() -> None:
    """One that is rare would be refused in production first."""
    texts = [each.read_text("utf-8") for each in LUA.iterdir()]
    called = {name for text in texts for name in re.findall(r"\bp?call\('([A-Z]+)'", text)}
    assert called - {word.removeprefix("+").upper() for word in acl_rule()} == OF_SHARED_SERVERS | OF_A_CHECK


@pytest.mark.parametrize("name", sorted({*SCRIPTS, *OF_SEVERAL, *OF_SLOTS, *INCLUDED} - {"keys"}))
def test_what_keys_are_called_is_derived_in_one_place(name: str) -> None:
    """A Cluster wants every key declared that a script may touch."""
    body = re.sub(r"^--.*$", "", (LUA / f"{name}.lua").read_text("utf-8"), flags=re.MULTILINE)
    looks = body.count("local stem = string.sub(lock, 1, -5)\n")  # release.lua says why
    others = body.count(
        "string.sub(stem, 1, -3 - #name) .. other .. '}:'"
    )  # the locks of one that waits for several
    found = re.findall(r"-5\)|-6\)|'}:|start \.\.", body)
    assert len(found) == looks + others == (name in {"acquire", "entry", "release"})
