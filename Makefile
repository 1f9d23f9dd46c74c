# `make` alone lists the targets. Everything runs in .venv, which is made when it is missing.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Further arguments for pytest: make unit PYTEST_ARGS="-k retry"
PYTEST_ARGS ?=
# Processes that run tests at the same time.
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help venv lint unit test test-exhaustive demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv and install everything in it

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

lint: venv ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: venv ## the tests of the pure core: seconds
	$(BIN)/pytest tests/unit $(PYTEST_ARGS)

test: lint ## lint and all tests but the exhaustive ones: minutes
	$(BIN)/pytest -n $(JOBS) $(PYTEST_ARGS)

test-exhaustive: venv ## the tests that take many minutes
	$(BIN)/pytest -n $(JOBS) -m exhaustive --timeout 7200 $(PYTEST_ARGS)

demo: venv ## a flow that is killed and goes on
	$(BIN)/python examples/quickstart.py

bench: venv ## measure the engine
	$(BIN)/python benchmarks/engine.py

clean: ## remove what was made here
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
