# Everything a fresh Debian or Ubuntu machine with Python 3.11+ needs: `make demo` or `make test`, nothing before it.
#
#   make setup           virtual environment in .venv with atoll (editable), the test tools and the linters
#   make demo            a swarm on this machine, with its dashboard; Ctrl-C ends all of it
#   make test            lint and the whole test suite
#   make lint            ruff, pyright, import-linter
#   make format          let ruff rewrite the sources
#   make fuzz            random bytes into every parser of untrusted bytes, for MINUTES=5
#   make hunt            random fault schedules against the protocol's properties (BUDGET=10000, or MINUTES=60)
#   make bench           every script in benchmarks/ that needs no GPU (gpu.py does), one JSON line per figure
#   make attacks         what poisoned contributions cost: the table of docs/security.md (half an hour on one core; what is
#                        finished at this commit is not measured again)
#   make test-container  build the image and run it (needs buildah; see docker/)
#   make clean           remove .venv and what building left
#
# Variables: TORCH=cpu takes PyTorch's CPU build (a tenth of the download) and TORCH=cuda the default one; without it,
# machines that have no NVIDIA GPU get the CPU build where they can. PYTHON=python3.12 another interpreter, NODES=4 the
# size of the demo, TEST_WORKERS=2 and TESTS=tests/unit for `test`, MINUTES=60 for `fuzz` and `hunt`; BUDGET, SEED and
# MAX_PEERS for `hunt`; SEEDS=3 for `attacks`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON ?= $(shell .ci/find-python)
NODES ?= 3
TESTS ?= tests
BUDGET ?= $(if $(MINUTES),0,10000)
MINUTES ?=
SEED ?= 0
MAX_PEERS ?= 32
SEEDS ?= 3
TEST_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))

TORCH ?=
TORCH_INDEX ?= $(if $(filter cpu,$(TORCH)),https://download.pytorch.org/whl/cpu)
PIP_INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check \
	--constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# Whatever changes here makes the next make install again (and rebuild the C), so that no test meets a stale binary.
BUILD_INPUTS := pyproject.toml constraints.txt $(wildcard setup.py) $(wildcard kernels/*.c kernels/*.h kernels/*/*.c kernels/*/*.h)

.PHONY: help setup demo test lint format fuzz hunt bench attacks test-container clean
help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.developer

# Two stamps: the demo needs no test tools, and after `make setup` it has all it needs.
$(VENV)/.runtime: $(BUILD_INPUTS) | $(VENV)/.torch
	@echo 'atoll: installing into $(VENV) (the first time takes a minute or two)' >&2
	@$(PIP_INSTALL) --quiet --editable .
	@touch $@

$(VENV)/.developer: $(BUILD_INPUTS) | $(VENV)/.torch
	@echo 'atoll: installing into $(VENV), with test tools and linters (the first time takes a minute or two)' >&2
	@$(PIP_INSTALL) --quiet --editable '.[test,lint]'
	@touch $(VENV)/.runtime $@

# PyTorch first and by itself: it is nearly all of the download, and the only part with a choice of builds.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/pip
	@echo 'atoll: installing PyTorch into $(VENV)' >&2
	@index=$(if $(TORCH)$(TORCH_INDEX),,$$(.ci/torch-index '$(PYTHON)')); $(PIP_INSTALL) $${index:+--extra-index-url "$$index"} torch
	@touch $@

$(VENV)/bin/pip:
	@test -n '$(PYTHON)' || exit 1
	@.ci/system-packages build '$(PYTHON)'
	@'$(PYTHON)' -m venv --clear $(VENV)

demo: $(VENV)/.runtime
	@$(VENV)/bin/atoll demo --nodes $(NODES) || [ $$? = 130 ]  # 130 is Ctrl-C: the way to end it, no error

test: setup
	@.ci/system-packages test '$(PYTHON)'
	@.ci/browser $(VENV)
	@$(MAKE) lint
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest --numprocesses $(TEST_WORKERS) $(TESTS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

fuzz: setup
	@$(PIP_INSTALL) --quiet atheris 2>/dev/null || echo 'atoll: no atheris for this Python; random mutations instead' >&2
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.fuzz --minutes $(or $(MINUTES),5)

hunt: setup
	@$(VENV)/bin/python -P -m atoll.protocol.simulator.hunt --budget $(BUDGET) --minutes $(or $(MINUTES),0) \
		--first-seed $(SEED) --max-peers $(MAX_PEERS) --processes $(TEST_WORKERS)

bench: setup
	@for script in $(filter-out benchmarks/attacks.py benchmarks/gpu.py,$(wildcard benchmarks/[a-z]*.py)); do OMP_NUM_THREADS=1 $(VENV)/bin/python "$$script"; done

attacks: setup
	@mkdir -p build
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/attacks.py --seeds $(SEEDS) --document docs/security.md \
		--results build/attacks-$$(git rev-parse --short HEAD).jsonl

test-container: setup
	TORCH_INDEX='$(TORCH_INDEX)' $(VENV)/bin/pytest --override-ini timeout=1800 -m container tests/container

clean:
	rm -rf $(VENV) build dist .pkg/*.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	find kernels -name '*.so' -delete
