# Every target sets up .venv automatically, from the hashed locks in requirements/.
# Needed on the machine: Python 3.11 or newer, and make. Another Python: make PYTHON=/path/to/python VENV=folder

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test nightly adapters torture audit lint format docs bench bench-check scale matrix mutants build lock clean

# python3 if it is new enough, else the newest one by name; looked for only when .venv is made.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v "$$p"; break; fi; done)

# Without byte code every process, and the tests start hundreds, compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
PY := $(VENV)/bin/python
SOURCES := $(wildcard src tests tools examples benchmarks)

# $(call setup,LEVEL): install what is missing for demo, dev, servers or peers.
define setup
	@python="$(PYTHON)"; if [ "$(origin PYTHON)" = file ] && "$(PY)" -c '' 2>/dev/null; then python="$(PY)"; fi; test -n "$$python" || { echo "Holdfast needs Python 3.11 or newer, and none was found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python" >&2; exit 1; }; \
	"$$python" tools/bootstrap.py $(1) "$(VENV)"
endef

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Show what Holdfast does, within a minute
	$(call setup,demo)
	@$(PY) examples/demo.py

test: ## Lint, types, layers and the everyday tests, within ten minutes
	$(call setup,servers)
	@$(PY) -m tools.suite test

nightly: ## All tests on every store and composition, coverage, benchmarks, other Pythons
	$(call setup,peers)
	@$(PY) -m tools.suite nightly

adapters: ## The tests of frameworks over the adapters, each in an environment of its own (network)
	$(call setup,servers)
	@$(PY) -m tools.adapters

torture: ## The long fault and fuzzing runs
	$(call setup,servers)
	$(PY) -m pytest -m torture -n auto --hypothesis-profile=torture

audit: ## Flaws in the source, known ones in the dependencies (network), and a list of these: build/sbom.json
	$(call setup,dev)
	@$(PY) -m tools.audit

lint: ## Style, formatting, types and layers
	$(call setup,dev)
	@$(PY) -m tools.suite lint

format: ## Rewrite the sources in the project's style
	$(call setup,dev)
	$(PY) -m ruff check --fix $(SOURCES)
	$(PY) -m ruff format $(SOURCES)

docs: ## Check the documents and build them into build/docs
	$(call setup,servers)
	$(PY) -m pytest tests/docs
	$(PY) -m mkdocs build --strict --quiet
	@echo "built build/docs/index.html"

bench: ## Run the benchmarks and print the figures
	$(call setup,peers)
	$(PY) -m benchmarks.run

bench-check: ## Run the benchmarks; fail when a ratio is under its recorded floor
	$(call setup,peers)
	$(PY) -m benchmarks.run --check

# SIZES: other numbers of threads, of which nothing is written; SELECT: some operations, with ; between their names;
# MISSING=1: only what has no figure yet; STORES: a folder for the stores, which stay there.
scale: ## Measure every operation on 1,000 to 1,000,000 threads; write the table into docs/guides/benchmarks.md
	$(call setup,peers)
	$(PY) -m benchmarks.scale $(if $(SIZES),--sizes $(SIZES)) $(if $(SELECT),--select "$(SELECT)") \
		$(if $(MISSING),--missing) $(if $(STORES),--stores "$(STORES)")

matrix: ## Run the suites on every store, and write what each guarantees into docs/guides/stores.md
	$(call setup,servers)
	$(PY) -m tools.matrix

mutants: ## Change the source in a hundred places, one at a time, and count the changes that the tests find
	$(call setup,servers)
	$(PY) -m tools.mutants

build: ## Build the sdist and the wheel into dist/ and check them
	$(call setup,dev)
	rm -rf dist
	$(PY) -m build --no-isolation
	$(PY) -m twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents dist/*.whl

COMPILE = $(PY) -m uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--custom-compile-command "make lock"

# The other locks take the versions of dev.txt (peers.txt those of servers.txt too), so that one environment can hold them all.
lock: ## Compile the locks in requirements/ (UPGRADE=1 takes newer releases)
	$(call setup,dev)
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra all -o requirements/dev.txt pyproject.toml requirements/dev.in
	$(COMPILE) -c requirements/dev.txt -o requirements/demo.txt pyproject.toml requirements/demo.in
	$(COMPILE) $(if $(UPGRADE),--upgrade) -c requirements/dev.txt -o requirements/servers.txt requirements/servers.in
	$(COMPILE) $(if $(UPGRADE),--upgrade) -c requirements/dev.txt -c requirements/servers.txt -o requirements/peers.txt requirements/peers.in
	for name in adk agent-framework langgraph langgraph-server openai pydantic; do $(COMPILE) -o requirements/adapters/$$name.txt \
		pyproject.toml requirements/adapters/$$name.in; done
	$(PY) -m tools.adapters versions
	$(COMPILE) -c requirements/dev.txt -o requirements/uv.txt requirements/uv.in
	$(COMPILE) $(if $(UPGRADE),--upgrade) -c requirements/dev.txt -o requirements/audit.txt requirements/audit.in
	for name in azurite langgraph-js; do (cd requirements/$$name && npm $(if $(UPGRADE),update,install) --package-lock-only); done

clean: ## Remove .venv and everything built
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
