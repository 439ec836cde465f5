# Everything runs inside .venv, which `setup` makes and keeps equal to requirements.lock.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10
PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-browser chaos lint format docs docs-serve numbers defaults bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make .venv (PYTHON=... picks the interpreter) and install the locked versions

demo: setup ## learn skills in the 2-D maze in minutes on a laptop; figure and table
	$(BIN)/becl maze --demo

# A file's tests share what they train: each file goes to one process, the longest first.
test: setup ## run the quick tests (ARGS=... goes to pytest)
	$(PYTEST) -m "not slow and not pages" $(ARGS)

test-all: setup ## run all tests, also those that take minutes and the documentation's (ARGS=... goes to pytest)
	$(PYTEST) $(ARGS)

test-browser: setup ## run the tests that need a browser, installing one where there is none (ARGS=... goes to pytest)
	$(PIP) install playwright
	@command -v chromium chromium-browser google-chrome chrome >/dev/null || $(BIN)/playwright install chromium
	$(BIN)/python -m pytest -n 0 -rs tests/test_gallery_browser.py tests/test_report_browser.py $(ARGS)

chaos: setup ## kill small runs dozens of times and compare with undisturbed ones (ARGS=--kills=50)
	$(BIN)/python -m benchmarks.chaos $(ARGS)

lint: setup ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: setup ## fix what can be fixed, then format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Without the theme's notice of its successor (its own fixes end in May 2027).
docs: setup ## build the documentation into site/, every warning an error, and run its code; no network needed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	$(BIN)/python -m pytest -n auto -m pages --durations=10 tests/test_docs.py tests/test_examples.py

docs-serve: setup ## show the documentation at http://127.0.0.1:8000, and again after every edit
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict $(ARGS)

numbers: setup ## write the numbers of README and docs from the files under results/
	$(BIN)/python -m benchmarks.numbers $(ARGS)

defaults: setup ## keep the default options of all methods anew, which reports compare runs with
	$(BIN)/python -m becl.experiments.defaults

bench: setup ## time the maze study, the simulations and pretraining on this machine
	$(BIN)/python -m benchmarks.maze
	$(BIN)/python -m benchmarks.envs
	$(BIN)/python -m benchmarks.pretrain becl diayn rnd --seeds 1 2

# uv resolves for every Python and platform at once; it lives in a throw-away environment because nothing else needs it.
# Versions already locked stay as long as they fit; ARGS=--upgrade takes the newest of everything.
# labmaze, which dm_control asks for and nothing here uses, cannot be installed on Python 3.13 without Bazel: so it is
# left out there, and `setup` installs what is locked and no more.
lock: $(BIN)/python ## write requirements.lock again (ARGS=--upgrade for newer versions)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(BIN)/python -m venv "$$tmp" && \
	"$$tmp/bin/pip" --disable-pip-version-check --quiet install uv && \
	echo "labmaze ; python_version < '3.13'" > "$$tmp/overrides" && \
	"$$tmp/bin/uv" pip compile --quiet --universal --python-version 3.11 --extra dev --override "$$tmp/overrides" \
		--no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" $(ARGS) pyproject.toml --output-file requirements.lock

clean: ## remove caches and build outputs (keeps runs/, results/ and .venv; the next setup reinstalls)
	rm -rf dist build site .pytest_cache .ruff_cache $(STAMP)
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing the versions in requirements.lock into $(VENV) ..."
	@$(PIP) install --no-deps --requirement requirements.lock
	@$(PIP) install --no-deps --editable .
	@touch $@

# Each candidate is run rather than looked up: a launcher may be on the path without its interpreter, or lack venv.
$(BIN)/python:
	@for python in $(PYTHONS); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Making $(VENV) with $$("$$python" --version) ..."; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "No Python 3.11 or newer with venv (tried: $(PYTHONS)); install one, or name it with PYTHON=..." >&2; \
	exit 1
