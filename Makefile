# Everything sets itself up: `make conformance` works from a fresh clone with CPython 3.11 and make present.
# Variables are given on the command line (`make conformance SUBJECT=vllm-ascend SOURCE=wheel/`), not in the environment.

SUBJECT := kernels
SOURCE :=
PROFILE := gate
ARGS :=
# How long `make deep` lasts, and how many runs `make stability` makes.
MINUTES := 60
RUNS := 200
# Empty: `lowered` where triton-ascend has a wheel for this Python and machine, else `interpreter`.
LANE :=
# Empty: the first of python3.11, python3 that is CPython 3.11 or later and can create an environment.
PYTHON :=
# A wheel to install instead of what the package index calls torch 2.13.0, for example a CPU build.
TORCH :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help conformance test test-interpreter faults deep stability agreement lint bench bench-kernels audit environment environment-interpreter environment-fleet explain-lane \
        check-device clean clean-cache clean-environment

# --- which Python, and so which lane ------------------------------------------------------------------------------

# Four words: lane, version, machine, command; nothing where no such Python is found.
PROBE := import ensurepip, platform, sys, venv; \
	version, machine, libc = sys.version_info[:2], platform.machine(), platform.libc_ver()[0]; \
	cpython = sys.implementation.name == "cpython" and version >= (3, 11); \
	lowered = version == (3, 11) and machine in ("x86_64", "aarch64") and libc == "glibc"; \
	print("lowered" if lowered else "interpreter", platform.python_version(), machine) if cpython else sys.exit(1)
CANDIDATES := $(or $(PYTHON),python3.11 python3)
FOUND := $(shell for python in $(CANDIDATES); do \
	line=$$($$python -c '$(PROBE)' 2>/dev/null) && echo "$$line $$python" && break; done)
OWN_LANE := $(or $(word 1,$(FOUND)),lowered)
OWN_ENVIRONMENT := $(if $(filter interpreter,$(OWN_LANE)),.venv-interpreter,.venv)
BASE_PYTHON := $(word 4,$(FOUND))

ASKED_LANE := $(filter-out auto,$(LANE))
override LANE := $(or $(ASKED_LANE),$(OWN_LANE))

ifneq ($(filter cuda npu,$(LANE)),)
# On a device, torch, compiler and driver belong together and to the machine: nothing is installed.
RUN_PYTHON := $(or $(PYTHON),python3)
READY := check-device
else
ENVIRONMENT := $(if $(filter interpreter,$(LANE)),.venv-interpreter,.venv)
RUN_PYTHON := $(ENVIRONMENT)/bin/python
READY := $(ENVIRONMENT)/.complete
endif

# --- what a developer types ---------------------------------------------------------------------------------------

quoted = '$(subst ','\'',$(1))'
SUBJECT_OPTIONS = $(foreach subject,$(SUBJECT),--subject $(subject)) $(if $(SOURCE),--source $(call quoted,$(SOURCE)))

conformance: explain-lane $(READY)
	$(RUN_PYTHON) -m pytest conformance $(SUBJECT_OPTIONS) --lane $(LANE) --hypothesis-profile $(PROFILE) $(ARGS)

# The tests of the suite itself, then a quick conformance run. Two processes where no device has to be shared, each file
# in one of them, as its tests share what they start.
test: explain-lane $(READY) $(if $(ENVIRONMENT),$(ENVIRONMENT)/.faults-complete)
	$(RUN_PYTHON) -m pytest tests $(if $(ENVIRONMENT),-n 2 --dist loadfile)
	$(RUN_PYTHON) -m pytest conformance --lane $(LANE) --hypothesis-profile quick

test-interpreter: .venv-interpreter/.complete
	.venv-interpreter/bin/python -m pytest conformance --lane interpreter --hypothesis-profile quick

# For hours: saved failures first, then rounds of what was drawn least so far, each with a new seed.
deep: explain-lane $(READY)
	$(RUN_PYTHON) -m conformance.deep --minutes $(MINUTES) $(SUBJECT_OPTIONS) --lane $(LANE) $(ARGS)

# Runs with different seeds, each of which has to pass.
stability: explain-lane $(READY)
	$(RUN_PYTHON) -m conformance.stability --runs $(RUNS) $(SUBJECT_OPTIONS) --lane $(LANE) $(ARGS)

# Lane against lane.
agreement: .venv/.complete .venv-interpreter/.complete
	.venv/bin/python -m conformance.agreement --cases 20000 $(ARGS)

# Which wrong kernels the suite finds, by which test, after how many examples. Goes on where it was interrupted.
faults: .venv/.faults-complete
	.venv/bin/python -m tests.faults $(ARGS)

lint: $(OWN_ENVIRONMENT)/.dev-complete
	$(OWN_ENVIRONMENT)/bin/python -m ruff check .
	$(OWN_ENVIRONMENT)/bin/python -m ruff format --check .
	$(OWN_ENVIRONMENT)/bin/python -m mypy
	$(OWN_ENVIRONMENT)/bin/actionlint -config-file ci/actionlint.yaml ci/*.yml

bench: .venv/.complete .venv-interpreter/.complete
	.venv/bin/python -m conformance.bench $(ARGS)

# The kernels themselves: on a device only.
bench-kernels: $(READY)
	$(RUN_PYTHON) -m conformance.bench_kernels --lane $(LANE) $(ARGS)

# What Ascend's own compiler makes of every kernel. Exit status 1: a finding that nobody has accepted.
audit: .venv/.complete
	.venv/bin/python -m conformance.audit $(SUBJECT_OPTIONS) $(ARGS)

environment: .venv/.complete

environment-interpreter: .venv-interpreter/.complete

# Ray, for python -m conformance.fleet.
environment-fleet: $(OWN_ENVIRONMENT)/.fleet-complete

clean-cache:
	rm -rf .cache/lowered .cache/hivm

clean: clean-cache
	rm -rf reports/output .hypothesis .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

clean-environment:
	rm -rf .venv .venv-interpreter

help:
	@echo 'make conformance              fuzz the kernels in kernels/ on the lane this machine has, and write reports/output/'
	@echo '     SUBJECT="NAME ..."       whose kernels: kernels (default), vllm-ascend, ...'
	@echo '     SOURCE=[NAME=]PATH       read them from a checkout or an unpacked wheel'
	@echo '     LANE=NAME                lowered, hivm, interpreter; cuda and npu use the Python that PYTHON names, as it is'
	@echo '     PROFILE=NAME             quick, gate (default), deep'
	@echo '     ARGS="..."               more arguments for pytest'
	@echo 'make test                     the tests of the suite itself and a quick conformance run'
	@echo 'make test-interpreter         a quick conformance run on the interpreter lane'
	@echo 'make deep MINUTES=60          fuzz for that long, what was drawn least first; keeps each failure in reports/output/deep/'
	@echo 'make stability RUNS=200       that many quick runs with different seeds, until one does not pass'
	@echo '     SUBJECT, SOURCE, LANE    as above;  ARGS="..." more arguments of the command and of pytest'
	@echo 'make agreement                lane against lane on 20,000 cases'
	@echo 'make lint                     ruff, mypy and actionlint'
	@echo 'make bench                    cases a second, launch times; writes reports/output/bench.json'
	@echo 'make bench-kernels LANE=cuda  times of the kernels on a GPU; writes reports/output/bench-kernels.json'
	@echo 'make audit                    compile every kernel for Ascend chips, no NPU needed; writes reports/output/audit.json'
	@echo '     SUBJECT, SOURCE          as above;  ARGS="..." more arguments for python -m conformance.audit'
	@echo 'make environment              .venv, for lane lowered; environment-interpreter: .venv-interpreter'
	@echo 'make environment-fleet        adds Ray to it, for python -m conformance.fleet'
	@echo 'make clean                    remove what runs wrote; clean-cache: compiled kernels; clean-environment: .venv*'
	@echo
	@echo 'When an environment is created:'
	@echo '     PYTHON=COMMAND           which CPython (3.11 or later; lane lowered needs 3.11 itself)'
	@echo '     TORCH=WHEEL              install torch from this wheel (a CPU build, say) instead of the package index'
	@echo '     PIP_FIND_LINKS=FOLDER    let pip look into this folder too (any PIP_ variable works)'

# --- environments -------------------------------------------------------------------------------------------------

# Errors stay visible. (Asked once for quiet, pip still warns about every package that a second index does not have.)
QUIETLY := --quiet --quiet --disable-pip-version-check --no-input

# Created from nothing each time: `triton` and `triton-ascend` share a folder, so that removing one from an environment
# that had both would leave neither. A `triton` to remove is there only if torch brought it.
define create
	$(if $(BASE_PYTHON),,$(error no CPython 3.11 or later that can create an environment (tried: $(CANDIDATES)); \
		name one with PYTHON=...))
	@echo 'creating $(@D) with CPython $(word 2,$(FOUND)); torch is by far the largest part'
	$(BASE_PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) -r requirements/$(1).txt $(if $(TORCH),$(call quoted,$(TORCH)))
	$(@D)/bin/python -m pip uninstall $(QUIETLY) --yes triton
	$(@D)/bin/python -m pip install $(QUIETLY) --no-deps -r requirements/$(1)-triton.txt
endef

# The files of ascendnpu-ir's wheel may come without their executable bit.
.venv/.complete: requirements/lowered.txt requirements/lowered-triton.txt
	$(if $(filter interpreter,$(OWN_LANE)),$(error lane lowered needs CPython 3.11 on Linux (x86-64 or aarch64, glibc) \
		but found $(wordlist 2,3,$(FOUND)); use LANE=interpreter or name another with PYTHON=...))
	$(call create,lowered)
	chmod +x .venv/lib/python*/site-packages/ascendnpuir/bin/*
	.venv/bin/python requirements/check_environment.py lowered
	@touch $@

.venv-interpreter/.complete: requirements/interpreter.txt requirements/interpreter-triton.txt
	$(call create,interpreter)
	.venv-interpreter/bin/python requirements/check_environment.py interpreter
	@touch $@

%/.fleet-complete: requirements/fleet.txt %/.complete
	$*/bin/python -m pip install $(QUIETLY) -r requirements/fleet.txt
	@touch $@

%/.faults-complete: requirements/faults.txt %/.complete
	$*/bin/python -m pip install $(QUIETLY) --no-deps -r requirements/faults.txt
	@touch $@

%/.dev-complete: requirements/dev.txt %/.complete
	$*/bin/python -m pip install $(QUIETLY) -r requirements/dev.txt
	@touch $@

explain-lane:
	$(if $(filter interpreter,$(if $(ASKED_LANE),,$(LANE))),@echo 'triton-ascend has no wheel for CPython $(word 2,$(FOUND)) \
		on $(word 3,$(FOUND)): using the interpreter lane',@:)

check-device:
	$(RUN_PYTHON) requirements/check_environment.py $(LANE)
