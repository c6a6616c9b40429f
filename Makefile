# `make demo` and `make test` do all set-up themselves; both are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A process for each core, up to four: each loads torch. One thread in each, else they would fight for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses=4 --dist loadfile

.PHONY: demo test test-slow lint clean

demo: $(VENV)/.kvlab  ## three strategies on a real model at equal bytes: tables and figures under outputs/demo
	$(BIN)/kvlab fetch model
	$(BIN)/kvlab demo

test: $(VENV)/.dev  ## the tests, slow ones left out
	$(BIN)/kvlab fetch model
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(VENV)/.dev  ## the slow tests alone
	$(BIN)/kvlab fetch model
	$(PYTEST) -m "slow and not gpu"

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvlab needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.kvlab: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.kvlab
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
