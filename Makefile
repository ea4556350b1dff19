# Everything that a developer runs. Each target sets up what it needs: a fresh clone, Python 3.11 or newer and Java 17 suffice.

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
	@'$(BIN)/python' -m pip install --quiet --disable-pip-version-check -c $(LOCK) -e '.[dev]'
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

.PHONY: demo-stream
demo-stream: java $(STAMP) ## The flights as a stream: Spark's driver is killed in a micro-batch, and starts again
	'$(BIN)/txnstore' demo --streaming $(if $(KEEP),--keep)

# Processes that run tests: as many as there are processors. JOBS=0 runs them in pytest's own process, as `pytest` does.
JOBS ?= auto
PYTEST := '$(BIN)/python' -m pytest -q -n $(JOBS) --dist loadgroup

# Two parts of `check` run at a time where make can keep their output apart (GNU make 4); all run, whatever fails.
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
format: $(STAMP) ## One part of check: is everything formatted?
	$(STEP) '$(BIN)/ruff' format --check .

.PHONY: lint
lint: $(STAMP) ## One part of check: ruff
	$(STEP) '$(BIN)/ruff' check .

.PHONY: types
types: $(STAMP) ## One part of check: mypy
	$(STEP) '$(BIN)/mypy'

.PHONY: quick
quick: $(STAMP) ## One part of check: quick unit and protocol tests, some seeds
	$(STEP) $(PYTEST) -m 'not slow' --durations=10 --durations-min=1 tests/unit tests/protocol tests/simulation

.PHONY: layers
layers: $(STAMP) ## One part of check: does every import point inwards?
	$(STEP) '$(BIN)/lint-imports' --no-logo

.PHONY: reference
reference: $(STAMP) ## One part of check: the site with the API reference, whose links must all resolve
	$(STEP) $(SPHINX)

# Of the long tests each run has one in SAMPLE, which the commit draws.
SAMPLE ?= 8

.PHONY: test test-all
test: java $(STAMP) ## Run all quick tests, and one in SAMPLE=8 of the long ones, drawn by the commit: on all processors
	$(PYTEST) --sample $(SAMPLE)

test-all: java $(STAMP) ## Run every test
	$(PYTEST)

.PHONY: nightly
nightly: ## Run all that takes long: every test, seeds, fuzzers, S3 servers, other engines and clients, random faults
	@$(MAKE) --no-print-directory --keep-going check test-all simulate minio versitygw s3a kafka-tests readers \
		differential-readers differential corruption fuzz-gateway mutate spark-versions

SEEDS ?= 10000
FIRST ?= 0

.PHONY: simulate
simulate: $(STAMP) ## Run SEEDS=10000 seeds of the simulation from FIRST=0 on, all processors; shrink what fails
	'$(BIN)/python' -m tests.harness.simulation --gateways --seeds $(SEEDS) --first $(FIRST)
	'$(BIN)/python' -m tests.harness.simulation --seeds $$(( ($(SEEDS) * 4 + 4) / 5 )) --first $(FIRST)

# The jars of the releases in the poms: a broker with its clients, and Spark's source for Kafka.
LIBS := build/kafka/libs
SPARK_LIBS := build/kafka/spark
TEST_LIBS := build/kafka/tests
PROGRAM_LIBS := build/kafka/programs

# S3 servers, built from their Go modules, in the versions that docs/storage.md reports on. The name of a stamp is a
# version, so that another version is built again.
MINIO := github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
S3_BIN := $(abspath build/s3/bin)
MINIO_BUILT := build/s3/.minio-$(lastword $(subst @, ,$(MINIO)))
VERSITYGW_BUILT := build/s3/.versitygw-$(lastword $(subst @, ,$(VERSITYGW)))

$(MINIO_BUILT):
	@tests/harness/s3/build '$(MINIO)' '$(S3_BIN)' && touch '$@'

$(VERSITYGW_BUILT):
	@tests/harness/s3/build '$(VERSITYGW)' '$(S3_BIN)' && touch '$@'

# They listen on a free port of 127.0.0.1 and end with the tests.
.PHONY: minio
minio: java $(STAMP) $(MINIO_BUILT) ## Build MinIO with Go, and run the S3 tests on it
	PATH='$(S3_BIN)':"$$PATH" TXNSTORE_TEST_S3=minio $(PYTEST) -m s3

# Spark fetches hadoop-aws from Maven Central: 18 MB, once.
.PHONY: s3a
s3a: java $(STAMP) $(MINIO_BUILT) ## Read MinIO with Spark's own Parquet reader and hadoop-aws, which Spark fetches
	PATH='$(S3_BIN)':"$$PATH" TXNSTORE_TEST_S3=minio TXNSTORE_S3A=1 \
		'$(BIN)/python' -m pytest -q -n 0 tests/integration/spark/test_s3a.py

.PHONY: versitygw
versitygw: java $(STAMP) $(VERSITYGW_BUILT) ## Build the S3 gateway of Versity with Go, and run the S3 tests on it
	PATH='$(S3_BIN)':"$$PATH" TXNSTORE_TEST_S3=versitygw $(PYTEST) -m s3

# Other releases of PySpark, each with an environment of its own: the locked versions of all else. CI runs the locked PySpark.
SPARK_VERSIONS ?= 4.0 4.1
SPARK_SUITE := tests/integration/spark/test_versions.py tests/integration/spark/test_sql_tables.py

build/spark/%/.installed: pyproject.toml $(LOCK)
	@mkdir -p '$(@D)'; grep -v '^pyspark==' $(LOCK) > '$(@D)/constraints'; '$(PYTHON)' -m venv '$(@D)'
	'$(@D)/bin/python' -m pip install --quiet --disable-pip-version-check -c '$(@D)/constraints' \
		-e . 'pyspark==$*.*' pandas pytest pytest-timeout pytest-xdist hypothesis
	@touch '$@'

.PHONY: spark-versions
spark-versions: java $(SPARK_VERSIONS:%=build/spark/%/.installed) ## Run the short Spark suite with SPARK_VERSIONS="4.0 4.1" of PySpark
	@for version in $(SPARK_VERSIONS); do echo "--- PySpark $$version"; python="$$PWD/build/spark/$$version/bin/python"; \
		PYSPARK_PYTHON="$$python" PYSPARK_DRIVER_PYTHON="$$python" "$$python" -m pytest -q -n 0 \
		-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning $(SPARK_SUITE); done  # Sockets that its py4j leaves open.

# DURATION: seconds. STORE: local, moto, minio, versitygw, or s3 (moto, or the server in TXNSTORE_TEST_S3).
# SERVER_KILLS=1 kills and restarts minio or versitygw too. A run is not replayed by its seed, but its faults are drawn by it.
DURATION ?= 60
STORE ?= local
CHAINS ?= 1
SEED ?= 0
SERVER_KILLS ?=
STORE_BUILT = $(if $(filter minio,$(STORE)),$(MINIO_BUILT)) $(if $(filter versitygw,$(STORE)),$(VERSITYGW_BUILT))

.PHONY: torture
torture: $(STAMP) $(STORE_BUILT) ## Kill and pause real processes on one store, then check what they saw: DURATION, STORE, CHAINS, SEED
	PATH='$(S3_BIN)':"$$PATH" '$(BIN)/python' -m tests.harness.torture --duration '$(DURATION)' --store '$(STORE)' \
		--chains '$(CHAINS)' --seed '$(SEED)' $(if $(SERVER_KILLS),--server-kills)

# Clients in Java take part where Maven can fetch them.
.PHONY: torture-gateway
torture-gateway: $(STAMP) $(STORE_BUILT) $(if $(shell command -v mvn),$(LIBS)/.fetched) ## Kill and pause two gateways and Kafka's clients, and cut connections; check what they saw: DURATION, STORE, CHAINS, SEED
	PATH='$(S3_BIN)':"$$PATH" '$(BIN)/python' -m tests.harness.gateway --duration '$(DURATION)' --store '$(STORE)' \
		--chains '$(CHAINS)' --seed '$(SEED)' $(if $(shell command -v mvn),--jars '$(LIBS)')

KILLS ?= 50

.PHONY: streaming-torture
streaming-torture: java $(STAMP) $(STORE_BUILT) ## Kill streaming pipelines of Spark KILLS=50 times each, then compare records: STORE, SEED
	PATH='$(S3_BIN)':"$$PATH" '$(BIN)/python' -m tests.harness.streaming --kills '$(KILLS)' --store '$(STORE)' \
		--seed '$(SEED)' $(if $(SERVER_KILLS),--server-kills)

INTERRUPTS ?= 10000
CASES ?= 2000

.PHONY: interrupts
interrupts: $(STAMP) ## Interrupt (Ctrl-C) all clients INTERRUPTS=10000 times, then check what is stored: SEED, CHAINS
	'$(BIN)/python' -m tests.harness.interrupts --interrupts '$(INTERRUPTS)' --chains '$(CHAINS)' --seed '$(SEED)'

.PHONY: corruption
corruption: $(STAMP) ## Damage every kind of object in CASES=2000 ways; no reader may answer wrongly: SEED
	'$(BIN)/python' -m tests.harness.corruption --cases '$(CASES)' --seed '$(SEED)'

.PHONY: exits
exits: $(STAMP) ## Let COUNT=200 processes fail to open a store on S3 in each way; each must leave with its own status
	'$(BIN)/python' -m tests.harness.exits --count '$(or $(COUNT),200)'

.PHONY: hostile
hostile: $(STAMP) ## Put hostile entries, names and schemas into CASES=2000 stores, and read them in every way: SEED
	'$(BIN)/python' -m tests.harness.hostile --cases '$(CASES)' --seed '$(SEED)'

GATEWAY_STORE ?= build/gateway
LISTEN ?= 127.0.0.1:9092

.PHONY: gateway
gateway: $(STAMP) ## Serve a folder to Kafka's clients until Ctrl-C: GATEWAY_STORE=build/gateway LISTEN=127.0.0.1:9092
	@test -d '$(GATEWAY_STORE)' || '$(BIN)/txnstore' init --store '$(GATEWAY_STORE)'
	'$(BIN)/txnstore' gateway --store '$(GATEWAY_STORE)' --listen '$(LISTEN)' --property auto.create.topics.enable=true

.PHONY: fuzz-gateway
fuzz-gateway: $(STAMP) ## Send a gateway frames that are nearly valid, for DURATION=60 seconds: SEED
	'$(BIN)/python' -m tests.harness.gateway_fuzz --seconds '$(DURATION)' --seed '$(SEED)'

.PHONY: memory-gateway
memory-gateway: $(STAMP) ## Compare the memory of a gateway under many hostile clients with what its page gives it
	'$(BIN)/python' -m tests.harness.gateway_memory

COPIES ?= 100000

.PHONY: copies
copies: $(STAMP) ## End processes that copy COPIES=100000 records from topic to topic; each arrives once, in its order
	TXNSTORE_COPIES='$(COPIES)' $(PYTEST) tests/integration/test_copiers.py

# KAFKA: the folder with the jars of a Kafka release (its libs); then each history also runs against a broker.
# SEED chooses the histories; without it each run has new ones, and prints the seed that repeats them. Tracebacks are
# native, because pytest parses the source of each frame for its own, which Python 3.11 refuses now and then.
HISTORIES ?= 1000
KAFKA ?=
HISTORY_SEED = $(if $(filter file,$(origin SEED)),$$RANDOM,$(SEED))

.PHONY: differential
differential: $(STAMP) ## Compare HISTORIES=1000 random histories with the model of Kafka; with KAFKA=…/libs also with Kafka
	@seed=$(HISTORY_SEED); echo "SEED=$$seed"; \
	TXNSTORE_DIFFERENTIAL=$(HISTORIES) TXNSTORE_KAFKA='$(KAFKA)' \
		'$(BIN)/python' -m pytest -q --tb=native --hypothesis-seed=$$seed tests/protocol/harness/test_differential.py \
		tests/protocol/harness/test_differential_consumers.py tests/protocol/harness/test_differential_churn.py \
		tests/protocol/harness/test_differential_cleaning.py tests/protocol/harness/test_differential_authorization.py

$(LIBS)/.fetched: tests/harness/kafka/pom.xml
$(SPARK_LIBS)/.fetched: tests/harness/kafka/spark-pom.xml
$(PROGRAM_LIBS)/.fetched: tests/harness/kafka_programs/pom.xml
$(LIBS)/.fetched $(SPARK_LIBS)/.fetched $(TEST_LIBS)/.fetched $(PROGRAM_LIBS)/.fetched:
	@command -v mvn >/dev/null || { \
		echo 'Maven fetches the jars of Kafka, and is not installed. Install it (Debian: maven), or unpack a release of Kafka' \
		'and name its libs folder: make differential KAFKA=…/libs' >&2; exit 1; }
	rm -rf '$(@D)'
	mvn -B -q -f '$<' dependency:copy-dependencies -DoutputDirectory='$(abspath $(@D))' -DincludeScope=runtime
	@touch '$@'

.PHONY: migration
migration: java $(STAMP) $(LIBS)/.fetched $(SPARK_LIBS)/.fetched ## Fetch Kafka by Maven, and migrate a topic from its broker
	'$(BIN)/python' -m tests.harness.kafka.migration '$(LIBS)' '$(SPARK_LIBS)'

.PHONY: kafka
kafka: migration ## Fetch Kafka by Maven; migrate a topic, and compare HISTORIES=20 random histories with its broker and at a gateway: SEED
	@$(MAKE) --no-print-directory differential KAFKA='$(LIBS)' \
		HISTORIES='$(if $(filter file,$(origin HISTORIES)),20,$(HISTORIES))'

# The recorded traces of a broker, replayed at gateways by Kafka's own clients. ONLY="fence random" chooses by a part of the name.
.PHONY: kafka-traces
kafka-traces: java $(STAMP) $(LIBS)/.fetched ## Fetch Kafka by Maven, and replay the recorded traces at gateways with its clients: ONLY
	'$(BIN)/python' -m tests.harness.kafka.traces '$(LIBS)' $(ONLY)

# Kafka's own tests of its clients, and the classes that run them against gateways. BROKERS=1 runs Kafka's brokers instead;
# ONLY="Class Class.method" chooses; ACCEPT=1 writes the outcomes into tests/harness/kafka_clients/expected.tsv.
KAFKA_TESTS := tests/harness/kafka_clients
TEST_CLASSES := build/kafka/tests-classes
ONLY ?=
BROKERS ?=
ACCEPT ?=

$(TEST_LIBS)/.fetched: $(KAFKA_TESTS)/pom.xml

$(TEST_CLASSES)/.compiled: $(TEST_LIBS)/.fetched $(shell find $(KAFKA_TESTS)/java -type f)
	@command -v javac >/dev/null || { \
		echo 'The classes that run the tests of Kafka need javac. Install it (Debian: openjdk-17-jdk-headless).' >&2; exit 1; }
	rm -rf '$(@D)'; mkdir -p '$(@D)'; cp -r $(KAFKA_TESTS)/java/META-INF '$(@D)'
	javac -nowarn -d '$(@D)' -cp '$(TEST_LIBS)/*' $(filter %.java,$^)
	@touch '$@'

.PHONY: kafka-tests kafka-tests-short
kafka-tests-short: OPTIONS := --short
kafka-tests-short: ## As kafka-tests, for less than five minutes
kafka-tests: ## Run Kafka's own tests of its Java clients against gateways: ONLY="Class Class.method", JOBS, BROKERS=1, ACCEPT=1
kafka-tests kafka-tests-short: java $(STAMP) $(TEST_CLASSES)/.compiled
	'$(BIN)/python' -m tests.harness.kafka_clients '$(TEST_LIBS)' '$(TEST_CLASSES)' $(OPTIONS) $(if $(ONLY),--only $(ONLY)) \
		$(if $(BROKERS),--brokers) $(if $(ACCEPT),--accept) --jobs $(if $(filter auto,$(JOBS)),1,$(JOBS))

# Kafka's tools, Streams and Connect, and Spark, against one gateway and against two. ONLY="streams connect" chooses.
PROGRAMS := tests/harness/kafka_programs
PROGRAM_CLASSES := build/kafka/programs-classes
GATEWAYS ?= 1 2

$(PROGRAM_CLASSES)/.compiled: $(PROGRAM_LIBS)/.fetched $(wildcard $(PROGRAMS)/java/*.java)
	@command -v javac >/dev/null || { \
		echo 'The word count of Kafka Streams needs javac. Install it (Debian: openjdk-17-jdk-headless).' >&2; exit 1; }
	rm -rf '$(@D)'; mkdir -p '$(@D)'
	javac -nowarn -d '$(@D)' -cp '$(PROGRAM_LIBS)/*' $(filter %.java,$^)
	@touch '$@'

.PHONY: kafka-programs kafka-programs-short
kafka-programs-short: OPTIONS := --short --gateways 1
kafka-programs-short: ## As kafka-programs, four steps with one gateway, for about two minutes
kafka-programs: OPTIONS = --gateways $(GATEWAYS)
kafka-programs: ## Run Kafka's tools, Streams and Connect, and Spark against gateways: ONLY="streams connect", GATEWAYS="1 2"
kafka-programs kafka-programs-short: java $(STAMP) $(PROGRAM_CLASSES)/.compiled $(SPARK_LIBS)/.fetched
	'$(BIN)/python' -m tests.harness.kafka_programs '$(PROGRAM_LIBS)' '$(PROGRAM_CLASSES)' '$(SPARK_LIBS)' $(OPTIONS) \
		$(if $(ONLY),--only $(ONLY))

# The tests that other clients have of themselves. SUITES chooses of franz-go (needs Go), kafka-python, confluent-kafka (git),
# kcat (Debian: kcat); PEERS=2 starts two gateways.
SUITES ?=
PEERS ?= 1

.PHONY: foreign-clients
foreign-clients: $(STAMP) ## Run the tests of franz-go, kafka-python, confluent-kafka and kcat against gateways: SUITES, PEERS, ONLY, ACCEPT=1
	'$(BIN)/python' -m tests.harness.foreign $(SUITES) --gateways '$(PEERS)' $(if $(ONLY),--only $(ONLY)) $(if $(ACCEPT),--accept)

# Engines that read tables, each with an environment of its own below READERS, in the versions of tests/readers/requirements.
# ENGINES chooses; HISTORIES from the seed FIRST=0 on; the stores of those whose rows differ are kept in READERS/kept.
READERS ?= build/readers
ENGINES ?=
ICEBERG_SPARK := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
ICEBERG_JAR := $(subst :,-,$(patsubst org.apache.iceberg:%,%,$(ICEBERG_SPARK))).jar
SHORT_READERS := pyiceberg duckdb polars
CHOSEN_READERS = $(or $(ENGINES),pyiceberg duckdb chdb polars spark)

$(READERS)/%/.installed: tests/readers/requirements/%.txt
	@echo 'Installing $* into $(@D) …'
	@mkdir -p '$(@D)'; '$(PYTHON)' -m venv '$(@D)'
	@'$(@D)/bin/python' -m pip install --quiet --disable-pip-version-check -r '$<'
	@touch '$@'

$(READERS)/$(ICEBERG_JAR):
	@command -v mvn >/dev/null || { echo "Maven fetches Iceberg's runtime for Spark, and is not installed (Debian: maven)." >&2; exit 1; }
	@mkdir -p '$(@D)'; mvn -B -q dependency:copy -Dartifact='$(ICEBERG_SPARK)' -DoutputDirectory='$(abspath $(@D))'

.PHONY: readers readers-short
readers: $(if $(filter spark,$(CHOSEN_READERS)),java $(READERS)/$(ICEBERG_JAR)) $(STAMP) $(CHOSEN_READERS:%=$(READERS)/%/.installed) ## Let pyiceberg, DuckDB, ClickHouse, Polars and Spark read the tables of HISTORIES=10 random histories: ENGINES, FIRST
	'$(BIN)/python' -m tests.readers '$(READERS)' $(CHOSEN_READERS) --seeds '$(FIRST)' '$(if $(filter file,$(origin HISTORIES)),10,$(HISTORIES))' \
		--keep '$(READERS)/kept' $(if $(filter spark,$(CHOSEN_READERS)),--runtime '$(READERS)/$(ICEBERG_JAR)')
	$(if $(filter spark,$(CHOSEN_READERS)),'$(BIN)/python' -m tests.readers.foreign '$(READERS)' '$(READERS)/$(ICEBERG_JAR)')

readers-short: $(STAMP) $(SHORT_READERS:%=$(READERS)/%/.installed) ## As readers, one history, with pyiceberg, DuckDB and Polars: less than three minutes
	'$(BIN)/python' -m tests.readers '$(READERS)' $(SHORT_READERS) --seeds 3 1 --keep '$(READERS)/kept'

.PHONY: differential-readers
differential-readers: $(STAMP) $(ENGINES:%=$(READERS)/%/.installed) ## Compare all readers of COUNT=100 random histories from SEED=0 on with a model: ONLY="scan sql", ENGINES="pyiceberg duckdb"
	'$(BIN)/python' -m tests.harness.readers --first '$(SEED)' --count '$(COUNT)' $(if $(ONLY),--readers $(ONLY)) \
		$(if $(ENGINES),--environments '$(READERS)' --engines $(ENGINES))

.PHONY: bench
bench: java $(STAMP) ## Measure against the raw storage, side by side
	'$(BIN)/python' -m benchmarks

.PHONY: mutants
mutants: $(STAMP) ## Record which seed kills each mutant, so that the tests find it at once
	'$(BIN)/python' -m tests.mutants

COUNT ?= 100

.PHONY: mutate
mutate: $(STAMP) ## Put COUNT=100 random faults into the product; unit and protocol tests must notice each one: SEED
	'$(BIN)/python' -m tests.harness.mutation --seed '$(SEED)' --count '$(COUNT)'

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
