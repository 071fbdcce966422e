VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

# Tests on real data run where the data is, and skip where it is not.
ifndef NASHGP_DATA
ifneq ($(wildcard ../shared/data/.),)
export NASHGP_DATA := $(abspath ../shared/data)
endif
endif

# Programs are compiled once for all processes of the tests, and for the next run of them.
test test-slow: export JAX_COMPILATION_CACHE_DIR := $(abspath .jax_cache)
test test-slow: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
test test-slow: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1
# Most programs of the tests run for less time than the compiler would spend on making them fast.
test: export XLA_FLAGS := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false

.DEFAULT_GOAL := help
.PHONY: help $(VENV) demo test test-slow lint check format docs scores bench clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(VENV): $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e ".[dev]" -c constraints.txt
	@touch $@

demo: $(VENV)  ## Fit and compare on bundled data; writes demo/report.html
	$(BIN)/nashgp run demo --out demo

test: $(VENV)  ## Run the tests, from nothing
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)  ## Run the long tests alone
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(VENV)  ## Check format, lint, types, imports and documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict

check: lint test  ## Everything a change has to pass

format: $(VENV)  ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

.venv-bench/.stamp:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install torch==2.13.0
	.venv-bench/bin/python -m pip install gpytorch==1.15.2 numpy
	@touch $@

scores: $(VENV)  ## Write docs/scores.md from the files in results/
	$(BIN)/nashgp report --results results --out docs/scores.md

bench: $(VENV) .venv-bench/.stamp  ## Time a training step beside GPyTorch
	$(BIN)/python -m bench.run --out results/bench.json

clean:  ## Remove everything made here, the environment too
	rm -rf .venv .venv-bench .jax_cache site build dist .pytest_cache .ruff_cache .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
