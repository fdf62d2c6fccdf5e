# `make help` lists the targets. Everything a target needs is installed by it, into .venv.
# Another interpreter: make demo PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench soak docs site wheel lock lowest clean debian

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Debian splits ensurepip off into python3-venv: without it the system's pip fills the environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: capro needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "\nhint: name another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { \
		rm -rf .venv; \
		$(PYTHON) -m venv --without-pip .venv && \
		$(PYTHON) -m pip -qq --python $@ install pip; \
	} || { rm -rf .venv; echo "error: $(PYTHON) can make no environment with pip" >&2; exit 1; }

# One pip call each: a second call without torch's range could pull another torch. -qq: errors only.
.venv/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing capro into .venv: about 510 MB are downloaded, 190 of them PyTorch for CPUs (a build for CUDA has gigabytes)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e ".[review]"
	@$(BIN)/python -c "import capro, torch, faiss, typer"
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing capro and its test tools into .venv (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e ".[dev]"
	@$(BIN)/python -c "import capro, torch, faiss, typer, pytest, hypothesis"
	@touch $@ .venv/.run

.venv/.site: pyproject.toml constraints.txt | $(BIN)/python
	@$(BIN)/python -m pip install -qq -c constraints.txt -e ".[site]"
	@touch $@

# What the tests need from Debian. Where it cannot be installed, the tests that need it say so and skip.
debian:
	@sh scripts/debian-packages wordnet-base:/usr/share/wordnet/data.noun chromium:/usr/bin/chromium

demo: .venv/.run ## run the whole pipeline on the embedded demo data and say where the results are
	@$(BIN)/capro demo --run runs/demo

test: .venv/.dev debian ## all checks and tests
	@$(MAKE) --no-print-directory check
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.dev ## format, lint, types, layers, known vulnerabilities of dependencies
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@MYPYPATH=benchmarks $(BIN)/mypy benchmarks/*.py
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_advisories.py

format: .venv/.dev ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/.dev ## all benchmarks (hours; docs/results.md holds the figures)
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

SOAK ?= --minutes 170 --seed 1
soak: .venv/.dev ## attack capro for three hours: kills, full disks, damaged files, hostile inputs (SOAK="--minutes 10 --seed 2")
	@$(BIN)/python -m soak $(SOAK)

docs: .venv/.dev ## check that every command, setting, path and link in README and docs/ exists
	@$(BIN)/python scripts/check_docs.py

site: .venv/.site ## build the documentation as a site into site/, which opens without a network or a server
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

wheel: .venv/.dev ## build the package into dist/, and run everything from it in an environment of its own
	@rm -rf dist && $(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m pytest -m package

lock: ## renew constraints.txt, the versions that the other targets install
	@PYTHON=$(PYTHON) sh scripts/lock

LOWEST ?=
lowest: ## the lowest versions that pyproject.toml allows, and a small part of the tests (LOWEST=--tested: constraints.txt)
	@PYTHON=$(PYTHON) sh scripts/lowest $(LOWEST)

clean: ## remove the environment, caches and the demo's run (other runs stay)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist site
	rm -rf runs/demo runs/demo-data
