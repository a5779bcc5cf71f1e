# Everything a developer runs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast sweep sweep-log simulate mutants check format docs proto lock bench bench-refine bench-writer bench-log bench-intake clean java

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED)  ## Create .venv from the lock, with the command at .venv/bin/archiver
	@echo "ready: $(BIN)/archiver"

# Exactly the lock: a change of it begins a new environment.
$(LOCKED): requirements/build.lock requirements/dev.lock
	@$(PYTHON) scripts/check_python.py
	@echo "installing what the lock names into $(VENV); this takes one or two minutes"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements/build.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements/dev.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# Asked before anything is installed, so that nobody waits for a set-up that cannot be used.
java:
	@$(PYTHON) scripts/check_python.py
	@$(PYTHON) scripts/check_java.py

demo: java $(INSTALLED)  ## Run the whole path on real data (needs Java)
	@$(BIN)/archiver demo

test: java $(INSTALLED)  ## Run every test (needs Java)
	@$(BIN)/python -m pytest --durations=15

test-fast: $(INSTALLED)  ## Run the tests that need neither Java nor much time
	@$(BIN)/python -m pytest -m "not spark and not slow"

sweep: $(INSTALLED)  ## Run the long sweeps whole, of which make test runs a share
	@ARCHIVER_HISTORY_SEEDS=150 ARCHIVER_FLIP_SHARE=1 $(BIN)/python -m pytest --timeout=3600 \
		tests/integration/test_random_histories.py tests/integration/test_altered_archive.py

sweep-log: $(INSTALLED)  ## Take an intake log of a million entries through checkpoints, and say how large and how slow it gets
	@ARCHIVER_LOG_ENTRIES=1000000 $(BIN)/python -m pytest -s tests/integration/test_log_scale.py

SEED ?=
RUNS ?= 20000
JOBS ?= 2

simulate: $(INSTALLED)  ## Play 20,000 seeds of the simulation (RUNS=, JOBS=); SEED=n plays one and shows every step
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --trace,--runs $(RUNS) --jobs $(JOBS))

mutants: $(INSTALLED)  ## Break the code on purpose in every known way and see that each is noticed (JOBS=)
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

check: $(INSTALLED)  ## Format, lint, types, import contracts, tidy rules, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python -m pytest --quiet tests/test_tidy.py

format: $(INSTALLED)  ## Format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)  ## Generate docs/configuration.md
	$(BIN)/python scripts/generate_docs.py

proto: $(INSTALLED)  ## Generate the Python code of the .proto files
	$(BIN)/python scripts/generate_proto.py

lock:  ## Resolve the dependencies anew (needs uv); UPGRADE=--upgrade takes the newest versions
	@command -v uv > /dev/null || { echo "error: make lock needs uv: https://docs.astral.sh/uv/getting-started/installation/" >&2; exit 3; }
	scripts/lock.sh build $(UPGRADE)
	scripts/lock.sh dev $(UPGRADE)

bench: bench-refine bench-writer bench-log bench-intake  ## Run all measurements

bench-refine: java $(INSTALLED)  ## Measure refinement against the libraries alone (needs Java)
	$(BIN)/python bench/refine.py

bench-writer: $(INSTALLED)  ## Measure the vectorised writer
	$(BIN)/python bench/writer.py

bench-log: $(INSTALLED)  ## Measure appends to the log in SQLite, alone and by several writers
	$(BIN)/python -m bench.log --output bench/results/log.json

bench-intake: $(INSTALLED)  ## Measure partitions per flush, bytes per file, and the time to an acknowledgement
	$(BIN)/python -m bench.intake --output bench/results/intake.json

clean:  ## Remove the environment and everything generated outside version control
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
