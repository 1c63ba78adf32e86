# Two commands for people: make demo, make test. The rest is for those who work on it.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEMO_ARGS ?=
CARGO := $(shell command -v cargo)

.PHONY: help demo test test-slow compatibility lint types proto lock check-proto rust-check engine-there check clean

help:
	@echo "make demo       download a file anonymously through a swarm of real parts on this machine"
	@echo "make test       run the tests (under 5 minutes)"
	@echo "make test-slow  run the tests with whole swarms"
	@echo "make test-lowest  run the demo and the tests with the lowest versions that setup.py allows"
	@echo "make lint       ruff     make types  mypy     make proto  generate rpc/control_pb2.py"
	@echo "make guard      what HEAD costs more than BASE, the last release or the commit before"
	@echo "make lock       write requirements/ anew: what is installed, with hashes"
	@echo "make rust-check format, lints and tests of the packet engine (where cargo is)"
	@echo "make fuzz       feed the packet engine's streams with random input for FUZZ_SECONDS (where cargo is)"
	@echo "make compatibility  exchange a file with other BitTorrent programs, those that are installed"
	@echo "make outdated   list the pins that are older than the newest release"
	@echo "make check      lint, types, freshness of generated code, all tests, guard: what .ci/run does"

demo: $(VENV)/run.stamp
	@$(BIN)/tunnel-pool demo $(DEMO_ARGS)

# So many processes test at a time, each whole files: tests wait more than they work, slow ones less so.
TESTERS ?= 4
SLOW_TESTERS ?= 3
PYTEST := -m pytest -q --dist loadfile

test: $(VENV)/dev.stamp
	@$(BIN)/python $(PYTEST) -n $(TESTERS)

test-slow: $(VENV)/dev.stamp
	@$(BIN)/python $(PYTEST) -n $(SLOW_TESTERS) -m slow

# In a network namespace, since some of these programs ask the world for their address. Run it as root.
compatibility: $(VENV)/dev.stamp
	@unshare -n $(BIN)/python -m tests.compatibility.matrix tests/compatibility/found.json
	@$(BIN)/python -m tests.compatibility.page tests/compatibility/found.json docs/COMPATIBILITY.md

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	@$(BIN)/mypy

proto: $(VENV)/dev.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Itunnel_pool/rpc=rpc --python_out=. --mypy_out=quiet:. tunnel_pool/rpc/control.proto

check-proto: $(VENV)/dev.stamp
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Itunnel_pool/rpc=rpc --python_out=$$out --mypy_out=quiet:$$out tunnel_pool/rpc/control.proto && \
	for f in control_pb2.py control_pb2.pyi; do \
	  cmp -s rpc/$$f $$out/tunnel_pool/rpc/$$f || { echo "rpc/$$f is not what rpc/control.proto says: run make proto" >&2; exit 1; }; \
	done && echo "generated code is fresh"

# PROPTEST_CASES makes the parsers' tests longer: the same properties, more input.
rust-check:
ifneq ($(CARGO),)
	@cd tunnel_pool/packet_engine && cargo fmt --check && cargo clippy --quiet --locked --all-targets -- -D warnings && \
	PYO3_PYTHON="$(CURDIR)/$(BIN)/python" cargo clippy --quiet --locked --features python -- -D warnings && \
	PROPTEST_CASES=$${PROPTEST_CASES:-5000} cargo test --quiet --release --locked
else
	@echo "no cargo: the packet engine is neither checked nor built"
endif

# libFuzzer sends an exit's side of streams what it likes; what it finds lies in tunnel_pool/packet_engine/fuzz. Stable Rust is enough.
FUZZ_SECONDS ?= 60
FUZZ_DIR := target/fuzz
COVERAGE := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)
.PHONY: fuzz
fuzz:
ifneq ($(CARGO),)
	@case "$(FUZZ_SECONDS)" in ''|0|*[!0-9]*) echo "FUZZ_SECONDS=$(FUZZ_SECONDS) is no number of seconds, 1 or more" >&2; exit 2;; esac
	@command -v c++ >/dev/null || { echo "libFuzzer needs a C++ compiler: apt-get install g++" >&2; exit 1; }
	@host=$$(rustc -vV | sed -n 's/^host: //p') && cd tunnel_pool/packet_engine && mkdir -p $(FUZZ_DIR)/corpus && \
	RUSTFLAGS="$(COVERAGE)" cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml \
	  --target "$$host" --target-dir $(FUZZ_DIR) && \
	$(FUZZ_DIR)/"$$host"/release/streams -max_total_time=$(FUZZ_SECONDS) -max_len=4000 -verbosity=0 -print_final_stats=1 \
	  -artifact_prefix=fuzz/ $(FUZZ_DIR)/corpus
else
	@echo "no cargo: nothing is fuzzed"
endif

# Where the crate does not compile, what is installed goes without it.
engine-there: $(VENV)/run.stamp
ifneq ($(CARGO),)
	@$(BIN)/python -c 'import tunnel_pool.packet_engine._native' || { \
	  echo "cargo is there, but the packet engine was not built: see pip install -v -e ." >&2; exit 1; }
endif

# BASE: what the change is compared with, the last release or the commit before.
BASE ?= $(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null || git rev-parse --short HEAD^ 2>/dev/null)
.PHONY: guard
guard: $(VENV)/dev.stamp
	@if [ -n "$(BASE)" ]; then $(BIN)/tunnel-pool experiment compare "$(BASE)" HEAD --rounds 3 --if-comparable; \
	else echo "there is no commit before this one to compare with"; fi

check: lint types check-proto rust-check fuzz engine-there test test-lowest test-slow guard

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed (apt-get install python3 python3-venv), or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv is needed: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) (once) ..." >&2
	@$(PYTHON) -m venv $(VENV)

# The engine is built anew when its source has changed, or when Rust was installed meanwhile.
ENGINE := $(if $(CARGO),tunnel_pool/packet_engine/Cargo.toml tunnel_pool/packet_engine/Cargo.lock $(wildcard tunnel_pool/packet_engine/src/*.rs tunnel_pool/packet_engine/src/*/*.rs) $(CARGO))

# Whatever is installed has a hash that is written down here.
INSTALL := $(PIP) install --no-build-isolation

$(VENV)/run.stamp: $(VENV)/bin/python setup.py requirements/build.txt requirements/run.txt $(ENGINE)
	@echo "Installing what is needed to run (once) ..." >&2
	@$(PIP) install --require-hashes -r requirements/build.txt
	@$(INSTALL) --require-hashes -r requirements/run.txt
	@$(INSTALL) --no-deps -e . || { \
	  echo "The packet engine does not build (see above): installing without it, which is slower." >&2; \
	  TUNNEL_POOL_BUILD_ENGINE=python $(INSTALL) --no-deps -e .; }
	@$(BIN)/python -m tunnel_pool.packet_engine
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.txt
	@echo "Installing what is needed to test (once) ..." >&2
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

# The lowest versions that setup.py allows, in an environment of their own: what it says has to hold.
LOWEST := $(VENV)-lowest
.PHONY: test-lowest
test-lowest: $(LOWEST)/stamp
	@$(LOWEST)/bin/tunnel-pool demo --size 50
	@$(LOWEST)/bin/python $(PYTEST) -n $(TESTERS)

$(LOWEST)/stamp: $(VENV)/dev.stamp requirements/lowest.txt
	@echo "Setting up $(LOWEST) (once) ..." >&2
	@$(BIN)/python -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/build.txt
	@$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install --no-build-isolation --require-hashes -r requirements/dev.txt
	@$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install --no-build-isolation --no-deps --require-hashes -r requirements/lowest.txt
	@TUNNEL_POOL_BUILD_ENGINE=python $(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install --no-build-isolation --no-deps -e .
	@touch $@

# The versions are those of constraints.txt, where setup.py allows them; the hashes are of all files that PyPI has of each.
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	-c constraints.txt

LOWEST_LOCK := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --resolution lowest-direct \
	--generate-hashes --no-annotate --no-header -c requirements/lowest.in

lock: $(VENV)/bin/python
	@$(PIP) install uv
	@$(LOCK) requirements/build.in -o requirements/build.txt
	@$(LOCK) setup.py --extra cli -o requirements/run.txt
	@$(LOCK) setup.py --extra dev -o requirements/dev.txt
	@$(LOWEST_LOCK) setup.py --extra cli -o requirements/lowest.txt

# What is pinned here, and has a newer release; asks the package indexes, and changes nothing.
.PHONY: outdated
outdated: $(VENV)/dev.stamp
	@echo "Python:"; $(BIN)/python -m pip --disable-pip-version-check list --outdated 2>/dev/null || \
	echo "no package index answers: try again with a network" >&2
ifneq ($(CARGO),)
	@echo "Rust:"; cd tunnel_pool/packet_engine && cargo update --dry-run --verbose 2>&1 | grep -E "Updating [a-z]|Unchanged" || \
	echo "no crate has a newer release, or no registry answers"
endif

clean:
	@rm -rf $(VENV) $(LOWEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
