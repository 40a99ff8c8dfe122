"""The pages stay short; each fact is explained on one of them, and each word of our own in the glossary."""

import re

import pytest

from tests.pages import PAGES

#: A command writes them, or their figures.
MADE = {f"docs/{name}.md" for name in ("api", "incidents", "options", "proof", "scoreboard", "wire")}
WRITTEN = {page: text for page, text in PAGES.items() if page.startswith("docs/") and page not in MADE}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)
_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
_WORD = re.compile(r"[^\W_][\w'\u2019-]*")


def prose(text: str) -> str:
    """Return a page without its code, comments, and where its links lead."""
    return _INLINE.sub(" ", _FENCED.sub("", text))


def words(text: str) -> int:
    """Return how many words of prose a text has."""
    return len(_WORD.findall(prose(text)))


def test_the_readme_is_read_in_two_minutes() -> None:
    """Who does not know yet whether this is for him reads no more."""
    readme = PAGES["README.md"]
    assert readme.count("\n") <= 120
    assert words(_TABLE.sub("", readme)) <= 550


def test_the_pages_are_read_in_two_hours() -> None:
    """At 230 words a minute."""
    assert len(WRITTEN) <= 26
    assert sum(map(words, WRITTEN.values())) <= 28_000


#: What is explained on one page, by how an explanation of it reads. Others name it, and link.
FACTS = {
    r"28 to 35 s": "killed",
    r"pid namespace": "killed",
    r"unacked_restore_interval": "killed",
    r"worker_deduplicate_successful_tasks": "killed",
    r"more than 256 kB": "one-at-a-time",
    r"`lock_max_waiting` \(": "one-at-a-time",
    r"REMAP_SIGTERM": "deploys",
    r"switches locking off:": "deploys",
    r"maxmemory-policy noeviction": "server",
    r"ACL SETUSER": "server",
    r"redislock:\{N\}:lock": "server",
    r"`lock_ttl` \(30 s\)": "long-tasks",
    r"`redislock_start_timeout` \(": "long-tasks",
    r"`lock_queue_ttl` \(an hour": "scopes-and-strategies",
    r"\| `.until_and_while_executing.` \| `": "scopes-and-strategies",
    r"Set `lock_debounce_max`": "flow",
    r"\(`WAIT`\)": "locks",
    r"under \*Exception\*": "integrations",
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_is_explained_on_one_page(fact: str) -> None:
    """Said twice it is read twice, and one of the two is forgotten when it changes."""
    assert [page for page, text in WRITTEN.items() if re.search(fact, text)] == [f"docs/{FACTS[fact]}.md"]


#: Words that mean nothing else: where one is used, it can be looked up there.
OWN = {
    "claim": r"claims?",
    "lease": r"leases?",
    "permit": r"permits?",
    "parked": r"park(?:s|ed|ing)?",
    "fence": r"fences?",
    "tick": r"ticks?",
    "lapsed": r"lapsed?",
    "watchdog": r"watchdog",
}


#: A link to another page than the glossary: its words are that page's name.
_ELSEWHERE = re.compile(r"\[[^\]]*\]\((?!glossary\.md)[^)]*\)")


@pytest.mark.parametrize("page", sorted(WRITTEN.keys() - {"docs/glossary.md", "docs/index.md"}))
def test_a_word_of_our_own_leads_to_the_glossary_where_a_page_uses_it_first(page: str) -> None:
    """But in headings, in code, and in links."""
    text = re.sub(r"^#.*$", "", _FENCED.sub("", PAGES[page]), flags=re.MULTILINE)
    text = re.sub(r"\[`([^`]*)`\]\(glossary", r"[\1](glossary", text)
    text = _ELSEWHERE.sub("", re.sub(r"`[^`]*`", "", text))
    unlinked = []
    for word, forms in OWN.items():
        first = re.search(rf"(?<![\w#-])(?:{forms})(?![\w-])", text, re.IGNORECASE)
        if first and not re.match(rf"[^\[\]]*\]\(glossary\.md#{word}\)", text[first.start() :]):
            unlinked.append(word)
    assert unlinked == []
