# What a developer runs. Each target sets up what it needs: a fresh clone, Python 3.11 or newer and Java 17 suffice.
# Instruments (seeds, fuzzers, S3 servers, other engines and clients): `python -m tests.harness` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements-dev.lock

# Spark's workers must run the interpreter that holds txnstore, and must not look for the machine's name in the network.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1

# The tests start hundreds of processes, which would all compile the same modules. `make clean` removes what is compiled.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that runs and is new enough; the locked versions are those of 3.11. `make PYTHON=… install` chooses another.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

.PHONY: help
help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: install
install: $(STAMP) ## Make .venv with the locked versions and this checkout, if that is not done yet

$(STAMP): pyproject.toml $(LOCK) txnstore/_version.py
	@if [ -z '$(PYTHON)' ]; then \
		echo 'txnstore needs Python 3.11 or newer, and found none. Install it, or name it: make PYTHON=/path/to/python3.11 …' >&2; exit 1; fi
	@if [ ! -x '$(BIN)/python' ]; then \
		'$(PYTHON)' -m venv '$(VENV)' || { rm -rf '$(VENV)'; \
		echo 'No virtual environment could be made: on Debian, install python3-venv.' >&2; exit 1; }; fi
	@echo "Installing $$(grep -c == $(LOCK)) packages and this checkout into $(VENV): a few minutes the first time, mostly for PySpark …"
	@'$(BIN)/python' -m pip install --quiet --disable-pip-version-check --no-compile -c $(LOCK) -e '.[dev]'
	@'$(BIN)/python' -m compileall -qq -j 0 -x '/tests?/' '$(VENV)/lib' || true  # pip compiles on one processor
	@touch '$@'
	@echo 'Installed. `. $(BIN)/activate` puts python and txnstore on the path.'

# Spark 4 and Kafka 4 need Java 17 or newer. Said here in one line, since Spark says it in a page.
.PHONY: java
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p') || true; \
	if [ -z "$$version" ]; then \
		echo "Spark and Kafka need Java 17 or newer, and '$$java' does not run. Install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME." >&2; exit 1; \
	elif [ "$$version" -lt 17 ]; then \
		echo "Spark and Kafka need Java 17 or newer, and '$$java' is version $$version. Set JAVA_HOME to a newer one." >&2; exit 1; fi

# KEEP=1 keeps the store of a demo, and says where it is.
KEEP ?=

.PHONY: demo
demo: java $(STAMP) ## Run the whole story on real flights, in a local folder: Spark, a crash, recovery, SQL; KEEP=1 keeps it
	'$(BIN)/txnstore' demo $(if $(KEEP),--keep)

# Processes that run tests: as many as there are processors. JOBS=0 runs them in pytest's own process, as `pytest` does.
JOBS ?= auto
PYTEST := '$(BIN)/python' -m pytest -q -n $(JOBS) --dist loadgroup

# The parts of `check` can be made alone. Two run at a time where make can keep their output apart (GNU make 4); all run, whatever fails.
CHECKS := format lint types quick layers reference
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--jobs=2 --output-sync=target)

.PHONY: check
check: $(STAMP) ## Format, lint, types, layers, quick tests, some seeds: before each commit
	@$(MAKE) --no-print-directory --keep-going $(TOGETHER) $(CHECKS)

# A link that leads nowhere, and a reference to a name that is not documented, fail the build.
SPHINX = { '$(BIN)/python' -m tests.pages.conformance && '$(BIN)/python' -m sphinx -n -W --keep-going -q -b html -c docs -d build/doctrees . build/docs; }

# The header of each part is its name, the last line is how long it took.
STEP = @echo '--- $@'; TIMEFORMAT='--- $@: %0lR'; time

.PHONY: format
format: $(STAMP)
	$(STEP) '$(BIN)/ruff' format --check .

.PHONY: lint
lint: $(STAMP)
	$(STEP) '$(BIN)/ruff' check .

.PHONY: types
types: $(STAMP)
	$(STEP) '$(BIN)/mypy'

.PHONY: quick
quick: $(STAMP)
	$(STEP) $(PYTEST) -m 'not slow' --durations=10 --durations-min=1 tests/unit tests/protocol tests/simulation

.PHONY: layers
layers: $(STAMP)
	$(STEP) '$(BIN)/lint-imports' --no-logo

.PHONY: reference
reference: $(STAMP)
	$(STEP) $(SPHINX)

# Of the long tests each run has one in SAMPLE, which the commit draws.
SAMPLE ?= 8

.PHONY: test test-all
test: java $(STAMP) ## Run all quick tests, and one in SAMPLE=8 of the long ones, drawn by the commit: on all processors
	$(PYTEST) --sample $(SAMPLE)

test-all: java $(STAMP) ## Run every test
	$(PYTEST)

.PHONY: nightly instruments
nightly: ## Run all that takes long: every test, seeds, fuzzers, S3 servers, other engines and clients
	@$(MAKE) --no-print-directory --keep-going check test-all instruments

instruments: $(STAMP)
	'$(BIN)/python' -m tests.harness nightly

.PHONY: bench
bench: java $(STAMP) ## Measure against the raw storage, side by side
	'$(BIN)/python' -m benchmarks

.PHONY: docs
docs: $(STAMP) ## Write the generated pages of docs/, and build the site: guides, how-tos and the reference, in build/docs
	'$(BIN)/python' -m tests.pages
	$(SPHINX)

.PHONY: dist
dist: $(STAMP) ## Build the wheel and the source distribution into dist/
	rm -rf build dist
	'$(BIN)/python' -m build

.PHONY: lock
lock: ## Write requirements-dev.lock with the newest versions that fit together
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	'$(PYTHON)' -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check '.[dev]'; \
	{ sed -n '/^#/p' $(LOCK); "$$tmp/venv/bin/python" -m pip freeze --all | grep -E '^[A-Za-z0-9._-]+==' | grep -vE '^(pip|txnstore|wheel)==' | LC_ALL=C sort -f; } > "$$tmp/lock"; \
	cp "$$tmp/lock" $(LOCK)

.PHONY: clean
clean: ## Remove what builds, tests and tools left behind; .venv stays
	rm -rf build dist *.egg-info .coverage htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	find . -path './$(VENV)' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
