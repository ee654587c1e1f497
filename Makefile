# The environment is made once, and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
PYTHONS ?= python3.12 python3.13
OP ?= rms_norm
RESULTS ?=
TORCH ?= torch==2.13.0
PACKAGES := triton==3.6.0 -e ".[dev]"
OLDEST := test_commands or test_import or checkpoints or saved or (budget and plain)

# pip leaves compiling to the first import, which keeps it: most modules of the packages are never imported.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/pip install --quiet --no-compile

.PHONY: test processes check train lint docs packages functions architectures oldest newest gpu clean

# All that needs no GPU: the tests, then the kernels in Triton's interpreter. JOBS processes, each with one thread: threads
# of several would wait for one another.
test: export OMP_NUM_THREADS := 1
test: .venv/installed
	XLA_FLAGS="$$($(BIN)/python tests/xla_flags.py)" $(BIN)/pytest -n $(JOBS) --dist worksteal
	TRITON_INTERPRET=1 $(BIN)/pytest -n $(JOBS) --dist worksteal

# Several processes and devices, where they take longer than `make test` should.
processes: export OMP_NUM_THREADS := 1
processes: .venv/installed
	$(BIN)/pytest -n $(JOBS) -m "slow and not gpu" tests/distributed

# Every output and gradient against float64 on this machine.
check: .venv/installed
	$(BIN)/retrograd check

# A small language model, into runs/. A thread that waits soon sleeps: where other processes want the cores too, threads
# that spin for long keep the one that they wait for from running.
train: .venv/installed
	GOMP_SPINCOUNT=1000 $(BIN)/retrograd train

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into build/site, and its blocks of code.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m docs tests/docs tests/package

# The archives in empty environments: with torch alone, jax alone, both; with another Python, jax alone, since few CPU builds
# of torch are at hand for it. pyenv's Pythons start where all its versions are named.
packages: export PYENV_VERSION := $(shell pyenv versions --bare 2>/dev/null | paste -sd:)
packages: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -m packages tests/package/test_hub.py
	$(BIN)/python tests/installed.py $(BIN)/python torch $(TORCH)
	$(BIN)/python tests/installed.py $(BIN)/python jax
	$(BIN)/python tests/installed.py $(BIN)/python torch,jax $(TORCH)
	for python in $(PYTHONS); do \
	  if $$python -c ""; then $(BIN)/python tests/installed.py $$python jax || exit 1; else echo "no $$python here"; fi; \
	done

# The modules of public functions, from the ops' declarations.
functions: .venv/installed
	$(BIN)/python tests/write_functions.py

# One binary of each kernel, for every architecture.
architectures: .venv/installed
	$(BIN)/pytest -n $(JOBS) -m "architectures and not slow"

# The oldest packages that pyproject.toml allows, before the environment's own. Triton is the oldest there already; torch is
# not, since no CPU build of the oldest is at hand.
oldest: export OMP_NUM_THREADS := 1
oldest: .oldest/installed
	PYTHONPATH=.oldest $(BIN)/pytest -n $(JOBS) -k "$(OLDEST)" tests/cli/test_commands.py tests/contract/test_contract.py \
	  tests/contract/test_jax.py tests/nn tests/package/test_import.py

.oldest/installed: pyproject.toml tests/floors.py .venv/installed
	rm -rf .oldest
	$(INSTALL) --no-warn-conflicts --target .oldest $$($(BIN)/python tests/floors.py)
	touch $@

# The kernels have to compile with the newest Triton too.
newest: .venv/installed
	$(INSTALL) --upgrade --target .triton-newest triton
	PYTHONPATH=.triton-newest $(BIN)/python -c "import triton; print('triton', triton.__version__)"
	PYTHONPATH=.triton-newest $(BIN)/pytest -n $(JOBS) -m "compile and not slow"

# On a GPU machine, with the Python that is there: the contract, then the benchmarks of OP, into RESULTS.
gpu:
	$(PYTHON) benchmarks/gpu.py $(OP) $(if $(RESULTS),--results "$(RESULTS)")

clean:
	rm -rf .venv .oldest .triton-newest

# torch by this name is a CPU build where pip finds one, and no CUDA build is fetched. The CUDA build of that version asks
# for another Triton; pip then takes the newest that goes with this one.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) $(TORCH) $(PACKAGES) || $(INSTALL) $(PACKAGES)
	touch $@
