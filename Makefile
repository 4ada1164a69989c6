# The two commands of the README are `make demo` and `make test`; `make help` lists the rest.
# Everything is installed into $(VENV); nothing outside the checkout changes but package caches and the model store.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest
PARALLEL ?= 2
MYPY_TARGETS := $(wildcard services/*/src) kernels/src operator/src proto/generate.py charts/render.py charts/previous.py tests/support/cluster

.PHONY: help setup kernels-native wire-native wire-rust fuzz kernels-selfcheck kernels-sanitized demo test check lint format types imports proto proto-check manifests lock unit kernels bench bench-peers bench-ffn exactness integration e2e kubernetes cluster cluster-down families image clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(STAMP) kernels-native wire-native ## Create the virtual environment from the pinned lock, build the C++ kernels and the native wire

kernels-native: ## Build the C++ kernels alone (without a compiler the torch back end runs, and says so)
	@if command -v $(CXX) >/dev/null; then $(MAKE) --silent -C kernels/csrc CXX="$(CXX)"; \
	else echo "kernels-native: no C++ compiler ($(CXX)); the experts will run torch's kernels, about half as fast. Install g++ and repeat"; fi

WIRE := services/wire/native
WIRE_STAMP := $(VENV)/.wire-native
CARGO := CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/.cache/cargo}
wire-native: $(WIRE_STAMP) ## Build the native wire alone (without cargo grpcio is the wire, and says so)

$(WIRE_STAMP): $(STAMP) $(wildcard $(WIRE)/*.toml $(WIRE)/*.lock $(WIRE)/*.rs $(WIRE)/*.pyi proto/moe/*/v1/*.proto) $(shell find $(WIRE)/src -name '*.rs')
	@if command -v cargo >/dev/null; then echo "wire-native: building; a few minutes the first time" && \
	$(CARGO) VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --quiet --release --uv -m $(WIRE)/Cargo.toml && touch $@; \
	else echo "wire-native: no Rust toolchain (cargo); the wire will be grpcio, whose hops are about 7 times slower. Install it from https://rustup.rs and repeat"; fi

$(STAMP): requirements.lock requirements.editable $(wildcard services/*/pyproject.toml) kernels/pyproject.toml operator/pyproject.toml proto/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with make PYTHON=...")'
	@echo "setup: virtual environment in $(VENV) (torch and its libraries: about 5 GB)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -r requirements.editable
	@touch $@

demo: setup ## Convert the demo model, bring it up with every expert in its own process, ask it, then chat
	$(BIN)/moe demo

test: check kernels-selfcheck wire-rust ## Everything that CI runs: lint, format, types, imports, protos, all tests
	$(PYTEST) -n $(PARALLEL) --dist loadgroup tests/unit tests/kernels tests/exactness
	$(PYTEST) tests/integration tests/e2e
	$(MAKE) --silent kubernetes

check: lint types imports proto-check ## The checks that run no code

lint: setup ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## Format everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd proto && ../$(BIN)/buf format -w

types: setup ## mypy, strict
	$(BIN)/mypy $(MYPY_TARGETS)

imports: setup ## The layers of docs/architecture.md
	$(BIN)/lint-imports

proto: setup ## Generate moe.api from the .proto sources
	$(BIN)/python proto/generate.py

proto-check: setup ## Lint the .proto sources; generated code is fresh
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	$(BIN)/python proto/generate.py --check

HELM ?= $(shell command -v helm || ls $${MOE_CACHE:-$$HOME/.cache/moe}/cluster/*/helm 2>/dev/null | tail -1)
manifests: setup ## Write what follows from the typed resources and the chart: definitions, schema, reference, k8s/, the previous chart
	$(BIN)/python charts/render.py --helm "$(HELM)"
	$(BIN)/python charts/previous.py

IMAGE ?= moe:0.1.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
image: ## Build the image of every pod as IMAGE (docker/README.md)
	docker build --file docker/Dockerfile --tag $(IMAGE) --build-arg TORCH_INDEX=$(TORCH_INDEX) .

lock: setup ## Compile requirements.lock from requirements.in
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links -o requirements.lock requirements.in

wire-rust: ## The native wire without Python: rustfmt, clippy, cargo test (nothing where there is no cargo)
	@if command -v cargo >/dev/null; then cd $(WIRE) && export $(CARGO) PYO3_PYTHON=$(abspath $(BIN))/python && \
	cargo fmt --check && cargo clippy --quiet --locked --all-targets --features python -- -D warnings && cargo test --quiet --locked; \
	else echo "wire-rust: no Rust toolchain (cargo); skipped"; fi

FUZZ_SECONDS ?= 600
FUZZING := CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/.cache/cargo-fuzz} cargo +nightly fuzz
fuzz: ## Fuzz what reads a peer's bytes in the native wire, for FUZZ_SECONDS on one core (nightly Rust, cargo-fuzz)
	@cargo +nightly --version >/dev/null 2>&1 || { echo "fuzz: no nightly Rust, which the sanitizers need: rustup toolchain install nightly --profile minimal (without: the README of $(WIRE))"; exit 1; }
	@cargo fuzz --version >/dev/null 2>&1 || { echo "fuzz: no cargo-fuzz: cargo install --locked cargo-fuzz"; exit 1; }
	cd $(WIRE) && $(CARGO) cargo run --quiet --locked --release --example fuzz_frames -- --seeds fuzz/seeds
	@mkdir -p $(WIRE)/fuzz/corpus/frames
	cd $(WIRE) && $(FUZZING) run frames fuzz/corpus/frames fuzz/seeds -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -print_final_stats=1

unit: setup ## Unit tests
	$(PYTEST) -n $(PARALLEL) --dist loadgroup tests/unit

kernels: setup ## Kernels against their references
	$(PYTEST) tests/kernels

SANITIZED := kernels/csrc/build/sanitized/libmoe_kernels.so
kernels-selfcheck: ## The C++ kernels' own check, every instruction set, with address and undefined-behaviour checks
	@if command -v $(CXX) >/dev/null; then $(MAKE) --silent -C kernels/csrc CXX="$(CXX)" SANITIZE=1 BUILD=build/checked selfcheck; \
	else echo "kernels-selfcheck: no C++ compiler ($(CXX)), nothing to check"; fi

kernels-sanitized: setup ## The C++ kernels' tests with address and undefined-behaviour checks
	$(MAKE) --silent -C kernels/csrc CXX="$(CXX)" SANITIZE=1 BUILD=build/sanitized OUT=build/sanitized/libmoe_kernels.so
	MOE_KERNELS_LIBRARY=$(CURDIR)/$(SANITIZED) LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 $(PYTEST) -q tests/kernels/test_linear.py tests/kernels/test_group_ffn.py \
	tests/kernels/test_attention.py tests/kernels/test_rms_norm.py tests/kernels/test_projection.py tests/kernels/test_softmax_gate.py

bench: setup ## The tables of docs/performance.md: layer calls, kernels, end to end; an hour (BENCH=--quick minutes, BENCH=--long hours)
	$(BIN)/python -m benchmarks --into docs/performance.md $(BENCH)

bench-peers: setup ## Environments of the peers that end-to-end is measured beside; compiles llama.cpp
	$(BIN)/python -m benchmarks.end_to_end.peers.install

bench-ffn: setup ## The experts' kernels beside peers and the machine's limits, as a table
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.ffn $(BENCH)

exactness: setup ## The distributed answer equals the single-process one, for every family
	$(PYTEST) -n $(PARALLEL) --dist loadgroup tests/exactness

integration: setup ## Real services over real gRPC
	$(PYTEST) tests/integration

e2e: setup ## The demo model, the command line, faults
	$(PYTEST) tests/e2e

kubernetes: setup ## On a real Kubernetes, built and started here (root, Go; seven minutes the first time)
	$(BIN)/python -m tests.support.cluster build
	$(PYTEST) tests/kubernetes

CLUSTER ?= dev
cluster: setup ## Start a Kubernetes on this machine (root, Go), or repair it; says how to reach it
	$(BIN)/python -m tests.support.cluster up --name $(CLUSTER)

cluster-down: setup ## End it and remove all of it but the cached binaries
	$(BIN)/python -m tests.support.cluster down --name $(CLUSTER)

families: setup ## Write docs/families.md from a run of the exactness suite
	MOE_FAMILIES_REPORT=docs/families.md $(PYTEST) tests/exactness

clean: ## Remove the virtual environment and caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache
