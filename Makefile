# `make` alone lists the targets. Everything runs in .venv, which is made when it is missing.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Further arguments for pytest: make unit PYTEST_ARGS="-k retry"
PYTEST_ARGS ?=
# Further arguments for the benchmarks: make bench BENCH_ARGS="--quick --json"
BENCH_ARGS ?=
# Processes that run tests at the same time.
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help venv tools lint unit test test-devicemapper test-exhaustive mutation demo demo-engine demo-page bench bench-devicemapper diagrams docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv and install everything in it

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# program:package of Debian. The tests compare what they unpack with what these make of it, ask servers by curl, look at
# the page in the browser and check alerts; the compiler makes a clock for the processes of a random history alone.
TOOLS := curl:curl tar:tar bsdtar:libarchive-tools umoci:umoci skopeo:skopeo gzip:gzip xz:xz-utils zstd:zstd mkfs.ext4:e2fsprogs openssl:openssl cc:build-essential promtool:prometheus chromium:chromium

tools: ## the programs that the tests need, installed by apt-get if they are missing
	@missing=""; PATH="$$PATH:/usr/sbin:/sbin"; \
	for each in $(TOOLS); do command -v $${each%%:*} >/dev/null || missing="$$missing $${each##*:}"; done; \
	if [ -z "$$(find /var/lib/apt/lists -name '*Packages*' 2>/dev/null | head -n 1)" ] || [ -n "$$missing" ]; then \
		echo "apt-get update; install:$$missing"; \
		apt-get update -qq && apt-get install -qq --yes --no-install-recommends $$missing >/dev/null; \
	fi

lint: venv ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: venv ## the tests of the pure core: seconds
	$(BIN)/pytest tests/unit $(PYTEST_ARGS)

test: lint tools ## lint and all tests but the exhaustive ones: minutes
	$(BIN)/pytest -n $(JOBS) $(PYTEST_ARGS)
	$(MAKE) --no-print-directory test-devicemapper

test-devicemapper: venv ## thin devices in a guest with a kernel of its own, and power cuts
	$(BIN)/python -m tests.guest all || [ $$? -eq 77 ]

test-exhaustive: venv tools ## the tests that take many minutes; random histories for an hour (HOLDFAST_HISTORY_MINUTES)
	$(BIN)/pytest -n $(JOBS) -m exhaustive --timeout 7200 $(PYTEST_ARGS)
	$(BIN)/python -m tests.guest test -m exhaustive tests/devicemapper || [ $$? -eq 77 ]
	$(BIN)/python -m tests.guest cuts --all --random 20 || [ $$? -eq 77 ]

# Further arguments: make mutation MUTATION_ARGS="--modules worker --mutants 30 --seed 7"
MUTATION_ARGS ?= --modules core store archive/rules archive/entry_rules flows --mutants 90
mutation: venv ## change the code by small mistakes, and see whether a test notices: half an hour
	nice -n 10 $(BIN)/python -m tests.mutation $(MUTATION_ARGS)

demo: venv ## an image processed, killed half-way, found again, and a hostile one refused
	$(BIN)/python examples/image_demo.py

demo-engine: venv ## a flow that is killed and goes on
	$(BIN)/python examples/quickstart.py

demo-page: venv ## the page, with living jobs and images: prints the address to open, until Ctrl-C
	@$(BIN)/python examples/page_demo.py

bench: venv tools ## measure everything, beside its peers: some thirty minutes
	$(BIN)/python benchmarks $(BENCH_ARGS)

bench-devicemapper: venv ## measure thin devices, in a guest
	$(BIN)/python -m tests.guest run $(BIN)/python benchmarks/devices.py

docs: venv ## the documentation as a site, in build/site; a broken link is an error
	$(BIN)/sphinx-build -q -W -n --keep-going -c docs/site -d build/doctrees . build/site

diagrams: venv ## draw the pictures of the documentation from the tables of the code
	$(BIN)/python docs/site/diagrams.py docs/images

clean: ## remove what was made here
	rm -rf .venv .venv-peers build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
