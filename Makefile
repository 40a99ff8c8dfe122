# Everything here needs Python 3.10 or newer, its pip, and make; nothing else has to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Most tests wait for a worker most of the time, so more of them run at once than there are cores. With six on two
# cores those that compute kept others from their answers for longer than a socket timeout.
JOBS ?= 4
# Tests that share workers run in one process ("loadgroup"), so that each pool starts once.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
# Tests start hundreds of processes, each of which would compile this package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-picture page-picture unit test slow test-all attack explore replay history soak newest lint docs site release clean

help:
	@echo "make demo      see it work: embedded server, real worker, real tasks (about 25 s)"
	@echo "make unit      tests without a server or a worker, in one to two minutes"
	@echo "make test      all tests but the slow ones"
	@echo "make slow      the slow ones"
	@echo "make test-all  both"
	@echo "make attack    random attacks on random set-ups, ten minutes (ARGS='--seconds 60')"
	@echo "make explore   every history of small worlds, and stores that are broken on purpose: a minute"
	@echo "make replay    the same on a server, and random ways: answers and keys are compared: five minutes"
	@echo "make history   what a lock lets through while faults are injected (ARGS='--seconds 10')"
	@echo "make soak      three beats, five minutes, twice (ARGS='--scheduler celery')"
	@echo "make newest    with the versions that users have, Python 3.10 to 3.15, half an hour (ARGS=3.14)"
	@echo "make lint      ruff and mypy"
	@echo "make docs      write the pages that are made: docs/options.md, incidents.md, proof.md, wire.md"
	@echo "make site      the documentation as a site: build/site/index.html"
	@echo "make demo-picture  play the demo and write docs/demo.svg, demo-phone.svg from what it prints"
	@echo "make page-picture  break a system, look at its page, and write docs/page.png (needs chromium, faketime)"
	@echo "make release   sdist and wheel of the last commit, into dist/ (CONTRIBUTING.md says what it needs)"
	@echo "make clean     remove the environment and caches"

demo: $(VENV)/embedded
	$(BIN)/python -m examples.demo

# They compute and never wait: as many at once as there are cores. One test: .venv/bin/python -m pytest FILE -k NAME
unit: $(VENV)/dev
	$(BIN)/python -m pytest -q -n auto tests/unit $(ARGS)

# ARGS='--durations=20' names the longest.
test: $(VENV)/dev
	$(PYTEST) -m "not slow" $(ARGS)

slow: $(VENV)/dev
	$(PYTEST) -m slow $(ARGS)

test-all: test slow

attack: $(VENV)/dev
	$(BIN)/python -m tools.attack $(ARGS)

explore: $(VENV)/dev
	$(BIN)/python -m tools.explore $(ARGS)

replay: $(VENV)/dev
	$(BIN)/python -m tools.explore --replay $(ARGS)

history: $(VENV)/dev
	$(BIN)/python -m tools.history $(ARGS)

soak: $(VENV)/dev
	$(BIN)/python -m tools.soak $(ARGS)

# Fetches programs of Debian's next releases into build/newest, on Debian only; nothing is installed.
newest: $(VENV)/dev
	$(BIN)/python -m tools.newest $(ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/zizmor --quiet --offline --persona pedantic .github

docs: $(VENV)/dev
	$(BIN)/python tools/options_page.py docs/options.md
	$(BIN)/python tools/incidents_page.py docs/incidents.md
	$(BIN)/python tools/wire_page.py docs/wire.md
	$(BIN)/python tools/proof_page.py docs/proof.md

# -W: each warning is an error, such as a link to a heading that is gone.
site: $(VENV)/site
	$(BIN)/sphinx-build --builder html --conf-dir docs --quiet --fresh-env -W --keep-going . build/site

# Times and process ids differ from run to run, and so does the picture.
demo-picture: $(VENV)/dev
	$(BIN)/python tools/demo_picture.py docs/demo.svg

page-picture: $(VENV)/dev
	$(BIN)/python -m tools.page_picture build/page docs/page.png

release: $(VENV)/dev
	$(BIN)/python -m tools.release $(ARGS)

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Editable, so that the environment always runs this checkout; made anew when the metadata changes.
$(VENV)/embedded: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[embedded]'
	@touch $@

# Older pips know no dependency groups; one that does is left as it is.
$(VENV)/dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[embedded,prometheus]' --group dev
	@touch $@ $(VENV)/embedded

$(VENV)/site: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --group site
	@touch $@
