# `make demo` and `make test` need Python (>= 3.11) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types bench clean

demo: $(VENV)/.demo  ## the main job on the embedded default
	$(BIN)/python examples/two_moons.py --out demo

test: lint types $(VENV)/.dev  ## lint, type check, every test
	$(BIN)/python -m pytest -q -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev  ## prints ratios against plain Kruskal in the same run
	$(BIN)/python benchmarks/cpu.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[fit]"
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache demo dist
