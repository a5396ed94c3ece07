# `make demo` and `make test` need Python (>= 3.11) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-gpu lint types bench clean

demo: $(VENV)/.demo  ## the main job on the embedded default
	rm -rf demo
	$(BIN)/diffclust fit --out demo

test: lint types $(VENV)/.dev  ## lint, type check, every test
	$(BIN)/python -m pytest -q -n auto

test-gpu:  ## the GPU solvers on a real GPU, with the Python that has torch and JAX for it: make test-gpu PYTHON=...
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_cuda.py tests/test_torch_cuda.py
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_jax.py tests/test_jax_solver.py
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_distributed.py -k nccl

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev  ## prints ratios against plain Kruskal in the same run
	$(BIN)/diffclust bench

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
