# `make help` lists the targets. Everything a target needs is installed by it, into .venv.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench docs clean debian

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One pip call each: a second call without torch's range could pull another torch.
.venv/.run: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing capro into .venv (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -q -e . 2>&1 | grep -v "is ignored: it is neither" || true
	@$(BIN)/python -c "import capro, torch, faiss, typer"
	@touch $@

.venv/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing capro and its test tools into .venv (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -q -e ".[dev]" 2>&1 | grep -v "is ignored: it is neither" || true
	@$(BIN)/python -c "import capro, torch, faiss, typer, pytest, hypothesis"
	@touch $@ .venv/.run

# What the tests need from Debian. Where it cannot be installed, the tests that need it say so and skip.
debian:
	@scripts/debian-packages wordnet-base:/usr/share/wordnet/data.noun chromium:/usr/bin/chromium

demo: .venv/.run ## run the whole pipeline on the embedded demo data and say where the results are
	@$(BIN)/capro demo --run runs/demo

test: .venv/.dev debian ## all checks and tests
	@$(MAKE) --no-print-directory check
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.dev ## format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.dev ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/.dev ## all benchmarks (hours; docs/benchmarks.md holds the figures)
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

docs: .venv/.dev ## check that every command and setting in docs/ exists
	@$(BIN)/python scripts/check_docs.py

clean: ## remove the environment and the runs
	rm -rf .venv runs
