# One command per habit. Each target builds .venv first when it is missing or stale,
# so any of them may be the first command on a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Test files run side by side; much of a test is waiting for a server.
JOBS ?= 3
INSTALLED_BENCH := .venv/.installed-bench

# mkdocs-material announces its successor in every build; the pinned version is good until 2027-05.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs clean

help:  ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## start the embedded server, write images, list them, read them back, train from them
	$(BIN)/python examples/demo.py

test: $(INSTALLED)  ## every test; ARGS="-k fork" narrows it
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations=15 $(ARGS)

check: $(INSTALLED)  ## format, lint, types, layers, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/mkdocs build --strict

bench: $(INSTALLED_BENCH)  ## reads and uploads beside the alternatives, about 25 minutes; ARGS=--quick for two
	$(BIN)/python -m penstock_bench.micro transfer $(ARGS)

docs: $(INSTALLED)  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean:  ## remove .venv and everything generated
	rm -rf .venv site dist multirun .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@echo "penstock: installing into .venv (the first time takes a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	@echo "penstock: installing the alternatives to measure into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,bench,rivals]'
	@touch $@
