# Everything runs in .venv, which is made when it is missing. Only Python 3.11 or newer, git and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On its own line of pip: any other version of torch brings gigabytes of CUDA along on many machines.
TORCH ?= torch==2.13.0
MODEL ?= smollm2-135m

.PHONY: help setup model serve test check format wheel clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | awk -F: '{printf "make %-10s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(f"Tandem needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}; try make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	@echo "1/3 making $(VENV) (all three steps: some minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@echo "2/3 installing $(TORCH)"
	@$(BIN)/python -m pip install --quiet '$(TORCH)'
	@echo "3/3 installing Tandem and what it is developed with"
	@$(BIN)/python -m pip install --quiet --editable '.[engine]' --group dev
	@touch $@

setup: $(VENV)/.installed  ## the environment, with everything that development needs

model: setup  ## fetch the default model
	@$(BIN)/tandem pull $(MODEL)

serve: setup  ## serve the default model on 127.0.0.1:8000
	@$(BIN)/tandem serve $(MODEL)

test: setup  ## all tests
	@$(BIN)/tandem pull $(MODEL)
	$(BIN)/python -m pytest

check: setup  ## linter and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: setup  ## a wheel for this platform, with the CPU kernels compiled into it
	TANDEM_PREBUILT=1 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean:  ## remove the environment and caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
