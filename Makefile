# Everything a developer runs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed

# The tests start thousands of processes: where caches are forbidden each would compile the package anew, half a second of CPU a time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-serve parts test test-all test-fast fault sweep sweep-log simulate mutants model soak check format docs proto lock bench bench-limit bench-writer bench-log bench-intake bench-schema bench-edge bench-fetch bench-record-batch bench-group-offsets bench-growth bench-backlog bench-deep-audit bench-mirror bench-kafka bench-workers bench-control-topic bench-capacity bench-peers bench-freshness bench-partitions bench-late-store bench-memory bench-compaction bench-cost clean java dist screenshots audit-dependencies kafka-compat

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED)  ## Create .venv from the lock, with the command at .venv/bin/archiver
	@echo "ready: $(BIN)/archiver"

# Exactly the lock: a change of it begins a new environment.
$(LOCKED): requirements/build.lock requirements/dev.lock
	@$(PYTHON) scripts/check_python.py
	@echo "installing what the lock names into $(VENV); this takes one to three minutes"
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

demo-serve: java $(INSTALLED)  ## Keep the demo running with live flights until Ctrl-C, and show its console (needs Java)
	@$(BIN)/archiver demo --serve

parts: java $(INSTALLED)  ## Fetch the real servers and packages that tests run into .cache (needs Java)
	@$(BIN)/python -m tests.support.servers.fetch_packages

test: java $(INSTALLED) parts  ## Run every test, of long sweeps a share (needs Java)
	@$(BIN)/python -m pytest --durations=15 --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test-all: java $(INSTALLED) parts  ## Run every test, with every sweep, simulation share and bench whole, then the mutants (hours)
	@ARCHIVER_TESTS=whole ARCHIVER_FAULT_SHARE=whole ARCHIVER_HISTORY_SEEDS=150 ARCHIVER_FLIP_SHARE=1 ARCHIVER_SCHEMA_SEEDS=50 TABLE_HISTORIES=60 \
		$(BIN)/python -m pytest --timeout=3600 --durations=15 --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
	@$(BIN)/python -m tests.mutants --jobs $(JOBS)

test-fast: $(INSTALLED)  ## Run the tests that need neither Java nor much time
	@$(BIN)/python -m pytest -m "not spark and not slow"

sweep: $(INSTALLED)  ## Run the long sweeps whole, of which make test runs a share
	@ARCHIVER_HISTORY_SEEDS=150 ARCHIVER_FLIP_SHARE=1 ARCHIVER_SCHEMA_SEEDS=50 $(BIN)/python -m pytest --timeout=3600 \
		tests/integration/test_random_histories.py tests/integration/test_altered_archive.py tests/integration/test_schema_properties.py \
		tests/integration/test_schema_history.py

sweep-log: $(INSTALLED)  ## Take an intake log of a million entries through checkpoints, and say how large and how slow it gets
	@ARCHIVER_LOG_ENTRIES=1000000 $(BIN)/python -m pytest -s tests/integration/test_log_scale.py

fault: java $(INSTALLED)  ## Play every failpoint with kill, pause, error and lost reply (needs Java; SEED=n plays a third)
	@ARCHIVER_FAULT_SHARE=$(or $(SEED),whole) $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --durations=15 tests/fault/sweep

SEED ?=
RUNS ?= 20000
# On two cores: tests wait for other processes about as long as they compute.
JOBS ?= 4

RIG ?= all

simulate: $(INSTALLED)  ## Play 20,000 seeds of every simulation (RIG=intake, publish or kafka, RUNS=, JOBS=); RIG= SEED=n plays one and shows every step
	$(BIN)/python -m tests.simulation --rig $(RIG) $(if $(SEED),--seed $(SEED) --trace,--runs $(RUNS) --jobs $(JOBS))

screenshots: $(INSTALLED)  ## Take pictures of the status page and the console's pages in their states (STATES=); they go to build/screenshots
	$(BIN)/python scripts/screenshots.py $(STATES)

mutants: $(INSTALLED)  ## Break the code on purpose in every known way and see that each is noticed (JOBS=)
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

MODEL_SECONDS ?= 600

model: $(INSTALLED)  ## Search the publish protocol: scenarios, broken rules, random walks (MODEL_SECONDS= of CPU for each; about an hour)
	$(BIN)/python -m tests.model scenarios --seconds $(MODEL_SECONDS)
	$(BIN)/python -m tests.model mutations --seconds $(MODEL_SECONDS)
	$(BIN)/python -m tests.model walks --seconds 60

MINUTES ?= 60

soak: java $(INSTALLED)  ## Run the daemon for an hour under load and faults, and judge what it kept and whether it grew (MINUTES=, SEED=)
	$(BIN)/python -m tests.harness soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

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

docs: $(INSTALLED)  ## Generate docs/configuration.md, docs/metrics.md, docs/openapi.json, and the figures of bench/results in docs/
	$(BIN)/python scripts/generate_docs.py

proto: $(INSTALLED)  ## Generate the Python code of the .proto files
	$(BIN)/python scripts/generate_proto.py

dist: $(LOCKED)  ## Build the wheel and the source archive into dist/
	$(BIN)/python scripts/build_dist.py

lock:  ## Resolve the dependencies anew (needs uv); UPGRADE=--upgrade takes the newest versions
	@command -v uv > /dev/null || { echo "error: make lock needs uv: https://docs.astral.sh/uv/getting-started/installation/" >&2; exit 3; }
	scripts/lock.sh build $(UPGRADE)
	scripts/lock.sh dev $(UPGRADE)
	scripts/lock.sh runtime $(UPGRADE)
	scripts/lock.sh audit $(UPGRADE)

AUDIT := .cache/audit

# Strict: a package that the service does not know fails too, because it says nothing of it. Otherwise a service that cannot be asked passes.
audit-dependencies:  ## Ask PyPI whether what the locks name has known vulnerabilities (needs the network)
	@$(PYTHON) -m venv --clear $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --require-hashes -r requirements/audit.lock
	@for lock in build runtime dev audit; do \
		echo "requirements/$$lock.lock"; \
		$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements/$$lock.lock || exit 1; \
	done

bench: bench-limit bench-writer bench-capacity bench-log bench-intake bench-schema bench-edge bench-fetch bench-record-batch bench-deep-audit bench-growth bench-backlog bench-mirror bench-kafka bench-workers bench-control-topic bench-peers bench-freshness bench-late-store bench-partitions bench-compaction bench-memory bench-requests bench-cost bench-etcd bench-group-offsets  ## Run all measurements, one after the other (many hours, 25 GB of disk)

bench-limit: java $(INSTALLED)  ## Measure refinement against the libraries alone, and show where the time goes (needs Java)
	$(BIN)/python -m bench.limit --output bench/results/limit.json

bench-writer: $(INSTALLED)  ## Measure the vectorised writer
	$(BIN)/python -m bench.writer --output bench/results/writer.json

bench-capacity: $(INSTALLED)  ## Count the bytes and objects that docs/operations/capacity.md reckons with
	$(BIN)/python -m bench.capacity --output bench/results/capacity.json

bench-log: $(INSTALLED)  ## Measure appends to the log in SQLite, alone and by several writers
	$(BIN)/python -m bench.log --output bench/results/log.json

bench-intake: $(INSTALLED)  ## Measure partitions per flush, bytes per file, and the time to an acknowledgement
	$(BIN)/python -m bench.intake --output bench/results/intake.json

bench-schema: $(INSTALLED)  ## Measure wide, deep and odd messages on their way into columns
	$(BIN)/python -m bench.schema --output bench/results/schema.json

bench-edge: $(INSTALLED)  ## Measure what judging records costs their senders
	$(BIN)/python -m bench.edge --output bench/results/edge.json

bench-fetch: $(INSTALLED)  ## Measure what the fetches of Kafka consumers cost
	$(BIN)/python -m bench.fetch --output bench/results/fetch.json

bench-record-batch: $(INSTALLED)  ## Measure decoding and encoding of Kafka record batches
	$(BIN)/python -m bench.record_batch --output bench/results/record_batch.json

bench-deep-audit: java $(INSTALLED)  ## Measure the deep audit beside refinement (needs Java)
	$(BIN)/python -m bench.deep_audit --output bench/results/deep_audit.json

bench-growth: $(INSTALLED)  ## Measure what a commit costs after 100, 1,000 and 10,000 commits (hours)
	$(BIN)/python -m bench.growth --output bench/results/growth.json

bench-backlog: $(INSTALLED)  ## Measure what 2,000 archives that wait for one commit cost
	$(BIN)/python -m bench.backlog --output bench/results/backlog.json

bench-mirror: java $(INSTALLED)  ## Measure the mirror beside a bare Kafka consumer (needs Java)
	$(BIN)/python -m bench.mirror --output bench/results/mirror.json

bench-kafka: java $(INSTALLED)  ## Compare the CPU of the Kafka listener with that of Apache Kafka's broker (needs Java, 10 GB of disk)
	$(BIN)/python -m bench.kafka --output bench/results/kafka.json

bench-workers: $(INSTALLED)  ## Measure the CPU of 1, 2 and 4 intake workers, and compare all records with those sent (10 GB of disk)
	$(BIN)/python -m bench.workers --output bench/results/workers.json

bench-control-topic: java $(INSTALLED)  ## Measure the publisher of control events beside a bare Kafka producer (needs Java)
	$(BIN)/python -m bench.control_topic --output bench/results/control_topic.json

bench-peers: java $(INSTALLED)  ## Measure the archiver beside Structured Streaming, the Iceberg sink, and the libraries alone, on the same topic (needs Java; half an hour)
	$(BIN)/python -m bench.peers --output bench/results/peers.json

bench-freshness: java $(INSTALLED)  ## Measure how long records take until a query finds them, and what idle topics cost (half an hour; needs Java)
	$(BIN)/python -m bench.freshness --output bench/results/freshness.json

bench-late-store: $(INSTALLED)  ## Measure a task with a store that answers late
	$(BIN)/python -m bench.late_store --output bench/results/late_store.json

bench-partitions: java $(INSTALLED)  ## Measure 1,000 topics with 4 partitions, and one topic with 2,000 (an hour; needs Java)
	$(BIN)/python -m bench.partitions --output bench/results/partitions.json

bench-compaction: java $(INSTALLED)  ## Measure what merging the small archives of a day costs, and what it brings queries (needs Java)
	$(BIN)/python -m bench.compaction --output bench/results/compaction.json

bench-memory: java $(INSTALLED)  ## Measure the memory of archiving backlogs of one partition, up to 10 GiB (needs Java, 25 GB of disk)
	$(BIN)/python -m bench.memory --output bench/results/memory.json

bench-requests: java $(INSTALLED)  ## Count what each step asks of a bucket (needs Java)
	$(BIN)/python -m bench.requests --output bench/results/requests.json

bench-cost: java $(INSTALLED)  ## Measure the bytes stored for bytes received beside a Kafka broker, and reads of intake (needs Java)
	$(BIN)/python -m bench.cost --output bench/results/cost.json

bench-group-offsets: $(INSTALLED)  ## Measure committed offsets of 10,000 consumer groups: CPU, bytes, memory, checkpoints
	$(BIN)/python -m bench.group_offsets --output bench/results/group_offsets.json

bench-etcd: java $(INSTALLED)  ## Measure the log in etcd beside a bare client and SQLite (needs Java)
	$(BIN)/python -m bench.etcd_log --output bench/results/etcd_log.json

kafka-compat: java $(INSTALLED) parts  ## Run Kafka clients of four languages against the listener and write docs/kafka-compatibility.md (needs Java, Go, kcat)
	$(BIN)/python -m tests.compatibility --output docs/kafka-compatibility.md

clean:  ## Remove the environment, builds and caches (but for .cache and demo-data)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
