# Every command of the house. On a fresh machine only Python 3.11+ and make are needed.

VENV ?= .venv
BIN := $(VENV)/bin
# Extra arguments, for example: make test PYTEST_ARGS="tests/unit -n 2"
PYTEST_ARGS ?=
# Processes that run tests: two for each processor, as tests mostly wait, 8 at most.
WORKERS ?= $(shell processors=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); \
	echo $$((processors < 4 ? 2 * processors : 8)))
# Words of the mutants to run; all without.
MUTANTS ?=
RUN_ARGS ?=
BENCH_ARGS ?=
SIM_ARGS ?=
COMPOSE_ARGS ?=
SEEDS ?= 200
SECONDS ?= 20
FUZZ_ARGS ?=
# Names of the attacks to make; all without.
ATTACKS ?=
ATTACK_ARGS ?=

# The first interpreter that is new enough and can build a virtual environment. Looked for only when one is built.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done)

# Some machines keep Python from writing bytecode: each of the thousand processes that tests start would compile
# everything anew, which is a quarter of the time that a start takes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- run and test ---------------------------------------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.run-ready ## Start a mesh with the digits example and send it the real images (ONCE=1: report, then end)
	@$(BIN)/python -m examples.digits.run $(if $(filter 1 yes true,$(ONCE)),--once) $(RUN_ARGS)

# Of the tests marked `long`: none, all, or one part of N, another one for each SEED (LONG=N/SEED).
LONG ?= none

# Several processes: many tests wait for other processes, or for time to pass. Those of the Node client are skipped where
# there is no node.
.PHONY: test
test: $(VENV)/.dev-ready $(if $(shell command -v npm 2>/dev/null),node-client) ## Run the tests but the long ones (PYTEST_ARGS=... to choose, LONG=all)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --long=$(LONG) \
		--hypothesis-profile=$(if $(filter all,$(LONG)),usual,gate) $(PYTEST_ARGS)

# Each part runs, also where one before it has failed.
.PHONY: test-all
test-all: ## Run everything, as before a release: all tests, seeds, fuzz, attacks, soaks, compose, mutants (hours)
	@$(MAKE) --keep-going LONG=all SEEDS=2000 check test simulate fuzz attacks soaks compose-test mutants

# The inner loop: units, properties with a tenth of their examples, and the contracts that most changes touch.
QUICK := tests/unit tests/properties $(addprefix tests/contract/, router/slots replica/slots client/test_calls.py \
	client/test_failures.py client/test_streaming.py controller/test_membership.py controller/test_tables.py \
	replica/test_execute.py replica/test_sessions.py replica/test_stop.py router/test_sessions.py \
	router/test_streams.py router/test_traffic.py)

.PHONY: test-quick
test-quick: $(VENV)/.dev-ready ## Run the tests of the inner loop, in about a minute (PYTEST_ARGS=... to choose)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" --long=none --hypothesis-profile=quick $(QUICK) $(PYTEST_ARGS)

.PHONY: mutants
mutants: $(VENV)/.dev-ready ## Break the product in some sixty ways, one after another, and see that the tests notice (a few minutes)
	@$(BIN)/python -m tests.mutants $(MUTANTS)

.PHONY: bench
bench: $(VENV)/.dev-ready ## Measure throughput and latency against a bare grpc.aio server
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: sim
sim: $(VENV)/.dev-ready ## Simulate: queue times of 8 routers and 1,000 replicas, sizes of frames (three minutes)
	@$(BIN)/python -m simulation $(SIM_ARGS)

.PHONY: compose-test
compose-test: $(VENV)/.dev-ready ## Run docker-compose.yml on a real engine under load: scale, restart, kill (four minutes)
	@$(BIN)/python -m tests.compose $(COMPOSE_ARGS)

# A control plane takes four seconds and 400 MB in each worker.
.PHONY: kube-test
kube-test: $(VENV)/.dev-ready kubetest-tools ## Run meshes on a real Kubernetes control plane, whose pods are processes
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --long=all tests/kube $(PYTEST_ARGS)

.PHONY: simulate
simulate: $(VENV)/.dev-ready ## Simulate whole meshes in which things break, SEEDS=200 other ones each time
	@$(BIN)/python -m simulation mesh --seeds $(SEEDS) $(SIM_ARGS)

# Atheris has wheels for few interpreters, so it is no part of what developers need: where it cannot be had, hypothesis
# makes the inputs. FUZZ_ARGS="payloads --jobs 4" chooses targets, by words in their names.
.PHONY: fuzz
fuzz: $(VENV)/.dev-ready ## Give arbitrary bytes to all decoders and rpcs, SECONDS=20 for each (FUZZ_ARGS=... to choose)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --disable-pip-version-check --quiet \
		--only-binary atheris -c constraints.txt atheris 2>/dev/null || true
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

.PHONY: soaks
soaks: $(VENV)/.dev-ready ## Break routers, replicas and controllers under load, and kill holders of slots, for some minutes
	@$(BIN)/python -m tests.history.soak
	@$(BIN)/python -m tests.slots_soak

.PHONY: attacks
attacks: $(VENV)/.dev-ready ## Attack a mesh of processes while a bystander goes on calling it (ATTACKS="tokens resets" to choose)
	@$(BIN)/python -m tests.attacks $(ATTACKS) $(ATTACK_ARGS)

# --- check ----------------------------------------------------------------------------------------------------------

.PHONY: check
check: check-static check-arch ## Check format, lint, types, import contracts, architecture, protos

# What no test checks.
.PHONY: check-static
check-static: check-format check-lint check-types check-imports check-protos

.PHONY: check-format
check-format: $(VENV)/.dev-ready
	$(BIN)/ruff format --check .

.PHONY: check-lint
check-lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .

.PHONY: check-types
check-types: $(VENV)/.dev-ready
	$(BIN)/mypy

.PHONY: check-imports
check-imports: $(VENV)/.dev-ready
	$(BIN)/lint-imports

.PHONY: check-arch
check-arch: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -q tests/arch

.PHONY: check-protos
check-protos: $(VENV)/.dev-ready check-breaking
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/python tools/generate_protos.py --check

# The public contract as it was released. Until there is one, nothing is frozen.
BASELINE := protos/baseline.binpb

.PHONY: check-breaking
check-breaking: $(VENV)/.dev-ready
	@test ! -f $(BASELINE) || $(BIN)/buf breaking --against $(BASELINE)

# --- change ---------------------------------------------------------------------------------------------------------

.PHONY: format
format: $(VENV)/.dev-ready ## Format the code and the protos, fix what can be fixed safely, write generated tables
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/buf format --write protos
	$(BIN)/python tools/generate_settings_table.py
	$(BIN)/python tools/generate_metrics_document.py
	$(BIN)/python tools/generate_errors_document.py
	$(BIN)/python tools/generate_dashboard.py
	$(BIN)/python tools/generate_prometheus_rule.py
	$(BIN)/python tools/generate_state_diagrams.py

.PHONY: protos
protos: $(VENV)/.dev-ready ## Generate slotmesh/v1 and slotmesh/internal from protos/
	$(BIN)/python tools/generate_protos.py

.PHONY: baseline
baseline: check-breaking ## Keep the public protos as they are in protos/baseline.binpb, with each release
	$(BIN)/buf build --path protos/slotmesh/v1 --exclude-source-info --output $(BASELINE)

.PHONY: clean
clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) $(TRITON_VENV) $(NODE_CLIENT)/node_modules dist build .compat .compose-test $(GRPC_TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- the OpenTelemetry collector ------------------------------------------------------------------------------------
# A real one for the tests of telemetry, with nothing but what these need: built from source, at pinned versions.
OTELCOL := .tools/otelcol
OTELCOL_BUILDER := v0.125.0

.PHONY: otel-collector
otel-collector: $(OTELCOL) ## Build the OpenTelemetry collector that tests of traces use; needs go 1.23 or newer

$(OTELCOL): deploy/otel-collector/builder.yaml
	@command -v go >/dev/null || { echo "The OpenTelemetry collector is built with go 1.23 or newer, and there is none." >&2; exit 1; }
	@echo "Building the OpenTelemetry collector into .tools (some minutes, once)"
	@mkdir -p .tools
	@GOBIN="$(CURDIR)/.tools" go install go.opentelemetry.io/collector/cmd/builder@$(OTELCOL_BUILDER)
	@.tools/builder --config $<
	@mv .tools/otelcol-build/otelcol $@ && rm -rf .tools/otelcol-build .tools/builder

# --- the Node client ------------------------------------------------------------------------------------------------
# No lock file: it would record where packages were downloaded from. package.json pins the versions.
NODE_CLIENT := examples/clients/node

.PHONY: node-client
node-client: $(NODE_CLIENT)/node_modules/.ready ## Install what the Node client needs

$(NODE_CLIENT)/node_modules/.ready: $(NODE_CLIENT)/package.json
	@command -v npm >/dev/null || { echo "The Node client needs node 20 or newer with npm, and found none." >&2; exit 1; }
	@cd $(NODE_CLIENT) && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# --- gRPC tools ------------------------------------------------------------------------------------------------------
# From the Go registry that GOPROXY of the environment says. Another version pinned here is built anew.
GRPC_TOOLS := .tools/grpc
GRPCURL_VERSION := v1.9.4
GHZ_VERSION := v0.120.0

.PHONY: grpc-tools
grpc-tools: $(GRPC_TOOLS)/.grpcurl-$(GRPCURL_VERSION) $(GRPC_TOOLS)/.ghz-$(GHZ_VERSION) ## Build grpcurl and ghz, for the tests of docs/grpcurl.md (needs go)

$(GRPC_TOOLS)/.grpcurl-$(GRPCURL_VERSION):
	$(call go_install,github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION))

$(GRPC_TOOLS)/.ghz-$(GHZ_VERSION):
	$(call go_install,github.com/bojand/ghz/cmd/ghz@$(GHZ_VERSION))

define go_install
@command -v go >/dev/null || { echo "grpcurl and ghz are built with go 1.25 or newer, and there is none." >&2; exit 1; }
@echo "Building $(1) (a minute or two, once)"
@mkdir -p $(GRPC_TOOLS)
@GOBIN="$(CURDIR)/$(GRPC_TOOLS)" go install $(1)
@touch $@
endef

# --- Kubernetes -----------------------------------------------------------------------------------------------------
# Outside the repository, so that all clones and worktrees of a machine share them: ~/.cache/slotmesh-kubetest.
.PHONY: kubetest-tools
kubetest-tools: ## Build the Kubernetes control plane, etcd and KWOK that tests run; needs go 1.26 or newer
	@$(PYTHON) tools/kubetest/build.py

# --- Triton's clients -----------------------------------------------------------------------------------------------
# In an environment of its own: it pins numpy and protobuf, and has messages of the names that slotmesh.inference has.
TRITON_VENV := .venv-triton
TRITON_PINS := tests/e2e/triton-constraints.txt

.PHONY: triton-client
triton-client: $(TRITON_VENV)/.ready ## Install Triton's clients for the tests of the Open Inference Protocol, into .venv-triton

$(TRITON_VENV)/.ready: $(TRITON_PINS)
	@echo "Installing Triton's client into $(TRITON_VENV) (once)"
	@$(PYTHON) -m venv --clear $(TRITON_VENV)
	@$(TRITON_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c $(TRITON_PINS) 'tritonclient[grpc,http]'
	@touch $@

# --- environment ----------------------------------------------------------------------------------------------------
# Two stamps, because who only wants to see it run should not wait for the developers' tools. They mean nothing when
# the interpreter has gone, as after an upgrade of Python.
ifneq ($(shell $(BIN)/python -c 'print("works")' 2>/dev/null),works)
.PHONY: $(VENV)/.dev-ready $(VENV)/.run-ready
endif

$(VENV)/.dev-ready: pyproject.toml constraints.txt
	$(call install,dev$(,)digits$(,)otlp)
	@touch $(VENV)/.run-ready $@

$(VENV)/.run-ready: pyproject.toml constraints.txt
	$(call install,digits$(,)http$(,)protos)
	@touch $@

, := ,

# An environment that does not work is built anew; an installation that was interrupted is completed.
define install
@$(BIN)/python -c '' 2>/dev/null || { \
	python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		echo "slotmesh needs Python 3.11 or newer with its venv module, and found none." >&2; \
		for found in python3.11 python3.12 python3.13 python3 python; do \
			if version=$$($$found --version 2>&1); then echo "  $$found: $$version" >&2; fi; done; \
		echo "Install one (Debian, Ubuntu: also the package python3-venv), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$python --version)"; \
	$$python -m venv --clear $(VENV); \
}
@echo "Installing slotmesh and what it needs into $(VENV) (a minute or two, once)"
@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef
