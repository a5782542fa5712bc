# Every target sets up .venv by itself, from the hashed lock in requirements/dev.txt.
# Needed on the machine: Python 3.11 or newer, and make. Another Python: make PYTHON=/path/to/python

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test cover lint format docs bench bench-check matrix torture build lock clean

# python3 if it is new enough, else the newest one by name; looked for only when .venv is made.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v "$$p"; break; fi; done)

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
SOURCES := $(wildcard src tests tools examples benchmarks)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Show what Holdfast does, in a minute
	@$(PY) examples/demo.py

test: lint cover ## Lint, types, layers, all tests and the coverage threshold

cover: $(READY) ## All tests with the coverage threshold, without the lint
	$(PY) -m pytest -n auto --cov --cov-report=term

lint: $(READY) ## Style, formatting, types and layers
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m mypy $(SOURCES)
	$(VENV)/bin/lint-imports --no-logo

format: $(READY) ## Rewrite the sources in the project's style
	$(PY) -m ruff check --fix $(SOURCES)
	$(PY) -m ruff format $(SOURCES)

docs: $(READY) ## Check the documents and build them into build/docs
	$(PY) -m pytest tests/docs
	$(PY) -m mkdocs build --strict --quiet
	@echo "built build/docs/index.html"

bench: $(READY) ## Run the benchmarks and print the figures
	$(PY) -m benchmarks.run

bench-check: $(READY) ## Run the benchmarks; fail when a ratio is under its recorded floor
	$(PY) -m benchmarks.run --check

matrix: $(READY) ## Run the suites on every store, and write what each guarantees into docs/guides/stores.md
	$(PY) -m tools.matrix

torture: $(READY) ## The long fault and fuzzing runs
	$(PY) -m pytest -m torture -n auto --hypothesis-profile=torture

build: $(READY) ## Build the sdist and the wheel into dist/ and check them
	rm -rf dist
	$(PY) -m build --no-isolation
	$(PY) -m twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents dist/*.whl

lock: $(VENV)/.locked ## Compile requirements/dev.txt anew (UPGRADE=1 takes newer releases)
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
		--all-extras --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		--output-file requirements/dev.txt pyproject.toml requirements/dev.in

clean: ## Remove .venv and everything built
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The environment is made anew when the lock changes; a changed pyproject.toml only reinstalls the package.
$(VENV)/.locked: requirements/dev.txt tools/bootstrap.py
	@test -n "$(PYTHON)" || { echo "Holdfast needs Python 3.11 or newer, and none was found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) tools/bootstrap.py $(VENV) requirements/dev.txt
	@touch $@

$(READY): $(VENV)/.locked pyproject.toml
	@$(PY) -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(PY) -m pip check --disable-pip-version-check >&2
	@touch $@
