# `make` alone lists what there is. Every target sets up what it needs and is quick when nothing is left to set up.
SHELL := /bin/bash
VENV := $(or $(TALLYSTICK_VENV),.venv)
BIN := $(VENV)/bin
ARGS ?=
# Hundreds of processes are started here, and each would compile what it imports if nobody kept the outcome.
export PYTHONDONTWRITEBYTECODE :=
# Which tests stay together on one worker, and which begin, is said in tests/conftest.py. Many wait for killed processes
# to come back, so there are more workers than the two cores that the tests are meant for; in the full run two less,
# because there each has a Java machine of its own.
PYTEST_FLAGS ?= --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo chaos serve test test-full test-pythons test-clients check bench bench-spark fmt lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install everything that demo, test and bench need
	@scripts/setup test

demo: ## transfers between two banks while processes are killed, then the proof
	@scripts/setup demo
	@$(BIN)/tallystick demo $(ARGS)

chaos: ## producers, brokers and consumers killed, paused and cut off, then the sets compared
	@scripts/setup demo
	@$(BIN)/tallystick chaos $(ARGS)

serve: ## run a broker on 127.0.0.1:7440
	@scripts/setup demo
	@$(BIN)/tallystick serve $(ARGS)

test: check ## the checks and a test of every promise
	@scripts/setup test
	$(BIN)/pytest -n 6 $(PYTEST_FLAGS) -m "not full" $(ARGS)

test-full: ## the tests that `make test` leaves out: further engines, drivers, kills and seeds
	@scripts/setup test
	$(BIN)/pytest -n 4 $(PYTEST_FLAGS) -m full $(ARGS)

test-pythons: ## a short selection of the tests on every other version of Python that is found
	@scripts/test-pythons

test-clients: ## dtm's own Go tests against this broker, where Go is found
	@scripts/test-clients $(ARGS)

check: ## style, types and import rules
	@scripts/setup demo
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: ## measure speed and print a table
	@scripts/setup test
	@$(BIN)/python -m benchmarks $(ARGS)

bench-spark: ## measure source, sink and jobs on Spark
	@scripts/setup test
	@$(BIN)/python -m benchmarks.spark $(ARGS)

fmt: ## format the code and fix what can be fixed
	@scripts/setup demo
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## write requirements.lock anew from pyproject.toml
	@scripts/lock

clean: ## remove the virtual environment and all caches
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
