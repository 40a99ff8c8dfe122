"""The page of proof: what tools have kept, and nothing else."""

import json
import re
from argparse import ArgumentParser
from datetime import date

from tests.pages import PAGES
from tools.proof_page import FIGURES, SECTIONS, proof_page
from tools.record import Table, add_record, keep


def test_the_committed_page_of_proof_is_current():
    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert PAGES["docs/proof.md"] == proof_page(kept)
    assert kept.keys() <= {section.tool for section in SECTIONS}
    assert "explore" in kept


def test_what_a_tool_keeps_is_on_the_page_in_place_of_its_last_figures(tmp_path):
    """With the day, the versions, and what was drawn; figures of other tools stay."""
    parser = ArgumentParser()
    add_record(parser)
    path = parser.parse_args(["--record", str(tmp_path / "proof.json")]).record
    before = date.today()
    keep(path, "soak", [Table(("sent",), [(11,)])], seconds=300)
    keep(path, "history", [Table(("scene", "holds"), [("clients paused", 7)])], seconds=10)
    keep(path, "soak", [Table(("sent",), [(22,)])], seed=5)

    page = proof_page(json.loads(path.read_text(encoding="utf-8")))
    assert "| 22 |" in page
    assert "| 11 |" not in page
    assert "| clients paused | 7 |" in page
    assert ", seed 5." in page
    days = re.findall(r"\d{4}-\d\d-\d\d", page)
    assert len(days) == 2
    assert before <= date.fromisoformat(days[0]) <= date.fromisoformat(days[1]) <= date.today()


def test_without_the_option_nothing_is_kept(tmp_path):
    keep(None, "soak", [])
    assert list(tmp_path.iterdir()) == []
