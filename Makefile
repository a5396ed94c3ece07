# `make demo` and `make test` need Python (>= 3.11) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A worker keeps to its own files, where fixtures are shared, until the other one has nothing left.
PARALLEL := -q -n auto --dist worksteal

LOWEST := .venv-lowest
PYTHONS ?= python3.12 python3.13

.PHONY: demo check fast-tests hooks check-hooks test all-tests test-lowest test-pythons test-gpu lint types bench clean

demo: $(VENV)/.demo  ## the main job on the embedded default
	rm -rf demo
	$(BIN)/diffclust fit --out demo

check: $(VENV)/.dev  ## lint, type check, fast tests, side by side
	$(MAKE) --jobs 3 lint types fast-tests

HOOKS := check-jsonschema codespell pre-commit pre-commit-hooks ruff zizmor

hooks: $(VENV)/bin/python  ## lint, format, spelling and files of settings before each commit
	$(PIP) $(HOOKS)
	$(BIN)/pre-commit install

check-hooks: $(VENV)/bin/python  ## what the hooks check, on all files
	$(PIP) $(HOOKS)
	$(BIN)/pre-commit run --all-files --show-diff-on-failure

test: $(VENV)/.dev  ## lint, type check, every test, side by side
	$(MAKE) --jobs 3 lint types all-tests

all-tests: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL)

fast-tests: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not browser and not gpu"

test-lowest: $(LOWEST)/.test  ## something of every extra, with the lowest versions that pyproject.toml allows
	DIFFCLUST_LOWEST=1 DIFFCLUST_EXTRAS=required $(LOWEST)/bin/python -m pytest $(PARALLEL) -W ignore::DeprecationWarning \
		tests/test_smoke.py tests/test_imports.py tests/test_sweep.py

test-pythons:  ## the core and JAX with other versions of Python: make test-pythons PYTHONS=...
	set -e; for python in $(PYTHONS); do \
		venv=.venv-$$($$python -c "import platform; print(platform.python_version())"); \
		$$python -m venv $$venv; \
		$$venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[jax]" hypothesis pytest; \
		$$venv/bin/python -m pytest -q tests/test_smoke.py; \
	done

test-gpu:  ## the GPU solvers on a real GPU, with the Python that has torch and JAX for it: make test-gpu PYTHON=...
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_cuda.py tests/test_torch_cuda.py tests/test_fleet.py
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_similarity.py -k kernels
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_jax.py tests/test_jax_solver.py tests/test_conformance.py
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

# --no-compile: most modules of torch and sympy are never imported, and Python compiles those that are.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --no-compile -e ".[fit]"
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	touch $@

# Not from pip's cache, and not into it: several GB that nothing else needs.
$(LOWEST)/.test: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
		-c constraints-lowest.txt -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) .venv-3.* .cache .mypy_cache .ruff_cache .pytest_cache demo dist \
		$(DOCS) build docs/gallery docs/live docs/reference docs/results docs/sg_execution_times.rst

# ------------------------------------------------------------------------------------------------ the site, a release

.PHONY: docs notebooks release

DOCS := .venv-docs
SITE := build/site

docs: $(DOCS)/.docs  ## the site in build/site/html: every example runs; a warning, a broken link or a misspelling fails
	$(DOCS)/bin/codespell README.md CHANGELOG.md CONTRIBUTING.md docs examples results src
	rm -rf $(SITE)/html  # pages of an earlier build may lead nowhere now
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -b html -d $(SITE)/doctrees docs $(SITE)/html
	DIFFCLUST_SITE=$(SITE)/html $(DOCS)/bin/python -m pytest -q tests/test_site.py

NOTEBOOKS := unknown_digits semi_supervised_digits how_many_clusters

notebooks: $(DOCS)/.docs  ## the notebooks of the three questions asked most, made from the examples and executed
	rm -rf build/notebooks
	mkdir -p build/notebooks
	cp $(NOTEBOOKS:%=examples/%.py) build/notebooks
	cd build/notebooks && ../../$(DOCS)/bin/sphinx_gallery_py2jupyter $(NOTEBOOKS:%=%.py)
	$(DOCS)/bin/jupyter execute --inplace $(NOTEBOOKS:%=build/notebooks/%.ipynb)

release: $(DOCS)/.docs  ## sdist and wheel, checked and tried in empty environments: everything but the upload
	rm -rf dist
	$(DOCS)/bin/python -m build
	$(DOCS)/bin/twine check --strict dist/*
	DIFFCLUST_DIST=dist $(DOCS)/bin/python -m pytest -q --noconftest tests/test_package.py
	$(DOCS)/bin/python packaging/try_extras.py dist $(EXTRAS)
	@echo "Ready. To upload: $(DOCS)/bin/twine upload dist/*"

$(DOCS)/.docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs,release]"
	touch $@
