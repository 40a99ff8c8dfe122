"""The page of the wire says what the code does: names, headers, keys and the scripts' contracts."""

import hashlib
import json
import re

import pytest

from celery_redislock.declaring.keys.rules import parse_key
from celery_redislock.publishing.message import Message
from celery_redislock.store import redisstore
from tests.pages import PAGES
from tools.wire_page import with_contracts

PAGE = PAGES["docs/wire.md"]
VECTOR = re.compile(r"^\| `([^`]+)` \| `(\{.*\})` \| `([^`]+)` \|$", re.MULTILINE)
VECTORS = [(one, json.loads(mapping), name) for one, mapping, name in VECTOR.findall(PAGE)]
DIGESTS = [vector for vector in VECTORS if ":v1:" in vector[2]]
TEMPLATES = [vector for vector in VECTORS if ":v1:" not in vector[2]]


@pytest.mark.parametrize(("task", "mapping", "name"), DIGESTS)
def test_a_digest_of_the_page_is_the_packages_and_follows_from_the_page(task, mapping, name):
    """By the text of the page alone, with nothing of this package; and by this package."""
    text = json.dumps(mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert name == f"{task}:v1:{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    assert parse_key(None, task_name=task, parameters=None)(mapping) == name


@pytest.mark.parametrize(("template", "mapping", "name"), TEMPLATES)
def test_a_name_of_the_page_is_made_of_its_template(template, mapping, name):
    assert parse_key(template, task_name="shop.any", parameters=None)(mapping) == name


def test_there_are_vectors_of_both_kinds():
    """What cannot be read in the page would be checked by nobody."""
    assert (len(DIGESTS), len(TEMPLATES)) == (7, 5)


def test_the_page_has_each_field_of_the_header_and_no_other():
    flags = {field: True for field, kind in Message.__annotations__.items() if kind is bool}
    other = {"options": {"lock_ttl": 5}, "opened_by": "a/b", "parked_at": 1.0, "number": 2}
    full = Message("k", "t", **flags, **other)
    section = PAGE.partition("## The headers of a message")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w)` \|", section, re.MULTILINE)) == set(json.loads(full.dumps()))


def test_each_key_of_the_store_is_in_the_table_of_keys():
    """``docs/server.md``: under the name that the code gives it."""
    keys = re.findall(r"^``(redislock:\S+)``", redisstore.__doc__, re.MULTILINE)
    spelled = {key.replace(":mark:NONCE", ":mark:MESSAGE") for key in keys}
    assert len(spelled) > 20
    assert {key for key in spelled if f"`{key}`" not in PAGES["docs/server.md"]} == set()


def test_the_committed_contracts_are_those_of_the_scripts():
    """``make docs`` writes them; each script begins with its own."""
    assert with_contracts(PAGE) == PAGE
    assert all(f"### `{name}`" in PAGE for name in redisstore.SCRIPTS)
