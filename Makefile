# What a newcomer needs is Python 3.11 or newer, pip, make and git. Everything is installed into .venv, from the pinned
# versions of requirements.lock, once; a changed lock installs again, a killed installation starts over.

PYTHON ?= python3
BIN    := .venv/bin
# a moved checkout installs anew too: the scripts of a .venv hold its path
LOCK   := $(shell { cat requirements.lock; pwd; } | sha256sum | cut -c1-16)
STAMP  := .venv/.locked-$(LOCK)

# a file's tests run in one process, one after the other; two processes: each comes to
# hold 1.2 GB, and a third took the tests to 4.2 GiB of memory
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test prove check bench docs clean

help: ## Show what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: $(STAMP) ## Install the pinned versions into .venv

demo: $(STAMP) ## Run the main job: raw records to a trained adapter, on a local S3 server
	@# it ends with this make, whose number is told here, because it may be killed before the demo can ask for it
	@exec $(BIN)/python pipelines/demo.py $(shell echo $$PPID)

test: $(STAMP) ## Pass the tests
	@$(BIN)/python -m pytest $(SPREAD) --durations=10

prove: $(STAMP) ## Pass the longer proofs: kill campaigns, wide property runs
	@$(BIN)/python -m pytest $(SPREAD) -m prove -o timeout=1800 --durations=10

check: $(STAMP) ## Lint, look at the format, check the types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## Measure against the peers; FULL=1 for all repetitions
	@$(BIN)/python benchmarks/run.py $(if $(FULL),--full)

docs: $(STAMP) ## Write the generated parts of docs/ anew
	@PYTHONPATH=tests $(BIN)/python -m support.docs

clean: ## Remove .venv and what the demo made; data/raw and runs are yours
	@rm -rf .venv .demo .bench dist data/packed data/tokenized data/tier data/*.json models/base models/adapter metrics dvc.lock

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  f"datakit needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.11")'
	@echo "Installing $$(grep -c == requirements.lock) pinned packages into .venv (once, about two minutes)" >&2
	@rm -f .venv/.locked-*
	@echo "  1 of 4: an empty environment" >&2
	@$(PYTHON) -m venv --clear .venv
	@echo "  2 of 4: download and unpack, the longest step" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --requirement requirements.lock
	@# torch's build for a CPU asks for nothing more, its build for GPUs for CUDA libraries, which the lock cannot know
	@echo "  3 of 4: what this machine's torch asks for, and datakit itself" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint requirements.lock torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# pip compiles on one core; some packages ship test files that are not meant to compile
	@echo "  4 of 4: compile" >&2
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
	@touch $@
