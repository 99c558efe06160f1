# .venv/ is the project's environment; every target that needs it makes it first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/pytest
TORCH := $(shell grep '^torch==' constraints.txt)
# Two at a time: tests start compilers and workers of their own.
JOBS ?= 2

.PHONY: help setup demo test check format lint types contracts soak sweep docs bench gpu constraints clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv/ (again only if pyproject.toml or constraints.txt have changed)

# torch first and alone: it is the largest part, and a resolver that has it stops looking for others.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)' -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## train from datasets/, start the daemon, drop a spec, show the result
	$(BIN)/python -m benchmarks.demo

test: $(STAMP) ## the tests that need no GPU and take seconds
	$(PYTEST) -n $(JOBS)

check: format lint types contracts test ## what CI runs

format: $(STAMP)
	$(BIN)/ruff format --check --quiet .

lint: $(STAMP)
	$(BIN)/ruff check --quiet .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports --no-logo

soak: $(STAMP) ## the long tests of the daemon: kills, bursts, full disks, hostile files; prints their figures
	$(PYTEST) -n $(JOBS) -m slow -rP --durations=0 tests/soak

sweep: $(STAMP) ## the long tests of the rest: many configurations of every kernel, compiled and on the emulator
	$(PYTEST) -n $(JOBS) -m slow --ignore tests/soak tests

docs: $(STAMP) ## check that what the documents say is what the code does
	$(PYTEST) tests/test_docs.py tests/test_project.py

bench: $(STAMP) ## what the parts cost on this machine
	$(BIN)/python -m benchmarks

gpu: $(STAMP) ## the tests that need an NVIDIA GPU and the extra [cuda]
	$(PYTEST) -m gpu tests/gpu

constraints: $(STAMP) ## pin what .venv/ holds now
	@{ grep '^#' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | LC_ALL=C sort -f; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove .venv/ and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
