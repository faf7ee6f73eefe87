# Every target works from a fresh clone: the environment is built on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Python starts some thousand times here, and most often on files that have not changed.
unexport PYTHONDONTWRITEBYTECODE

# A suite is a package below suites/, as `disttest list` has it.
SUITES := $(notdir $(patsubst %/__init__.py,%,$(wildcard suites/*/__init__.py)))
# Kinds of tests, a folder each, cheap ones first. The first tier needs Python and pip packages only: no root, no service, no npm.
# `make test-all SKIP=browser,devices` leaves kinds out; nothing is skipped by itself.
CORE     := unit contract core
KINDS    := $(CORE) workflows integration plugins devices cluster kubernetes cuda docker browser compat-sample
comma    := ,
LEFT_OUT := $(subst $(comma), ,$(SKIP))

.PHONY: gpu test test-all rest check setup action package lock lint format catalogue compat mutants product-mutants matrix faults planted soak docs site picture clean $(SUITES) $(KINDS)

$(SUITES): $(READY)
	$(BIN)/disttest $@

WANTED   := $(filter-out $(LEFT_OUT),$(KINDS))
# So many run at once: one for each processor; and beside them, one after another, those that mostly wait for an engine or a
# cluster. Long ones in pieces, by the first letters of their files.
LANES    ?= $(shell nproc)
WAITING  := $(filter $(WANTED),docker cluster kubernetes)
FIRST    := unit contract core-a-m core-n-z
RUNS     := $(addprefix integration-,a-c d-g h-n o-r s-z) cuda-s-z devices cuda-a-r compat-sample plugins workflows browser
kind_of   = $(or $(filter $(1),$(KINDS)),$(firstword $(subst -, ,$(1))))
wanted_of = $(foreach run,$(1),$(if $(filter $(call kind_of,$(run)),$(WANTED)),$(run)))
PIECES   := $(call wanted_of,$(RUNS))

# The first tier: lint, unit tests, contracts, and real ranks over gloo.
test: $(READY)
	+tools/lanes $(LANES) lint catalogue $(call wanted_of,$(FIRST))

test-all: $(READY)
	$(MAKE) test || code=$$?; $(MAKE) rest && exit $${code:-0}

# All that `make test` leaves out. What the machine lacks is named immediately, not when the kind that needs it has its turn.
rest: setup $(READY) $(patsubst %,tests/%/node_modules/.ready,workflows $(filter browser,$(WANTED)))
	+tools/lanes $(LANES) $(PIECES) -- $(WAITING)

# While you work: lint, the unit tests, and of the rest those that the change touches (tools/touched.py has the rules).
check: $(READY)
	code=0; $(MAKE) --jobs=2 --keep-going --output-sync=target lint unit || code=1; \
	files="$$($(BIN)/python tools/touched.py $(BASE))" && { [ -z "$$files" ] || $(BIN)/python -m pytest $$files; } && exit $$code

# What kinds of tests need of the machine: installed by root, else named with the one command that does it.
setup:
	tools/setup $(WANTED)

setup-%:
	@tools/setup $*

# With RETRY=FILE, as in CI, failed tests of at most two files are run once more by themselves; FILE lists them.
# Each kind has a cache of its own for what failed last, since others run at the same time.
# With THOROUGH=1, as before a release, also what repeats a behaviour that a cheaper test shows (tests/support/thorough.py).
pytest_of = -o cache_dir=.pytest_cache/$@ $(if $(THOROUGH),--thorough) $(1)
pytest    = $(BIN)/python -m pytest --durations=8 $(pytest_of) $(if $(RETRY),|| tools/retry $(RETRY) $$? $(BIN)/python $(pytest_of))

$(KINDS): %: setup-% $(READY)
	$(call pytest,tests/$(@:-sample=))

$(filter cuda-%,$(RUNS)): setup-cuda

core-% integration-% cuda-%: $(READY)
	$(call pytest,tests/$(@:-$*=)/test_[$*]*.py)

# torch's own suites under both harnesses, in full: hours. `make test` compares with what this recorded.
compat: $(READY)
	$(BIN)/python -m pytest tests/compat tests/cuda/test_torch_suite.py --full

browser: tests/browser/node_modules/.ready

workflows docker integration kubernetes $(filter integration-%,$(RUNS)): tests/workflows/node_modules/.ready

tests/%/node_modules/.ready: tests/%/package-lock.json
	npm ci --prefix tests/$* --ignore-scripts --no-audit --no-fund
	touch $@

# action.yml's inputs, outputs and variables, and their tables in the docs, from the code that reads them.
action: $(READY)
	PYTHONPATH=tests/support $(BIN)/python tests/support/action_files.py

# The lock files of the image and of the launcher, after a change of pyproject.toml or constraints.txt.
lock: $(READY)
	PATH=$(abspath $(BIN)):$$PATH requirements/lock

# The wheel and the source distribution, as they are released; the same commit gives the same bytes.
package:
	$(PYTHON) -m venv --clear .package
	.package/bin/python -m pip install --quiet --require-hashes --only-binary :all: --requirement requirements/build.lock
	SOURCE_DATE_EPOCH=315532800 .package/bin/python -m hatchling build --clean
	rm -rf .package

catalogue: $(READY)
	$(BIN)/python tools/catalogue.py

# On a machine with GPUs and a torch for them: what no emulation shows, into docs/hardware/MODEL.md.
GPU_PYTHON ?= $(BIN)/python
gpu: $(READY)
	PYTHONPATH=entrypoint $(GPU_PYTHON) tools/hardware.py

# Plants faults in torch, one at a time, and fails when the suites do not notice one (half an hour on two cores).
mutants: $(READY)
	$(BIN)/python -m tests.mutants.run

# Plants random faults in disttest itself, one at a time, and lists those that no unit test near them notices.
product-mutants: $(READY)
	$(BIN)/python -m tests.mutants.product --report tests/mutants/survivors.txt

# A part of the tests with other versions of Python, torch and pytest (17 GB of wheels, once): make matrix ROWS="oldest middle newest".
matrix: $(READY)
	$(BIN)/python tools/matrix.py $(ROWS)

# Every fault in every phase, by the first and the last rank, in every kind of world; and a flood of 1 GB.
faults: $(READY)
	$(BIN)/python -m pytest tests/integration/test_fault_matrix.py --full

# The planted hangs, orders and good programs as in `make test`, and traps that look like a deadlock for a minute each.
planted: $(READY)
	$(BIN)/python -m pytest tests/integration/test_planted.py --full

# Ten minutes of the matrix mixed with 2,000 good tests, a hundred runs cancelled at random moments, a hundred pairs of runs
# (ten rounds each) beside a process that makes shared memory of its own, 500 moments at which one to three levels are
# killed, and 10,000 forged journals, messages and option values each.
soak: $(READY)
	$(BIN)/python bench/soak.py
	$(BIN)/python -m pytest tests/integration/test_cancel.py --trials 100
	$(BIN)/python -m pytest tests/integration/test_beside_others.py --trials 100
	$(BIN)/python -m pytest tests/integration/test_kills.py --trials 125
	$(BIN)/python -m pytest tests/unit/test_fuzz.py --hypothesis-profile soak

docs: $(READY)
	$(BIN)/python tools/suites_doc.py
	$(BIN)/python tools/verdicts_doc.py
	$(BIN)/python tools/messages_doc.py
	$(BIN)/python tools/command_doc.py
	$(BIN)/python tools/marks_doc.py
	$(BIN)/python tools/features_doc.py

# The docs as a site, in build/site. `make picture` takes the pictures of a report and a summary anew (needs Chromium).
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

picture: $(READY)
	$(BIN)/python tools/report_picture.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/structure.py
	$(BIN)/codespell

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	# Never over one that is there: made by another Python it would become a mixture of the two.
	test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dev]'
	touch $@

clean:
	rm -rf $(VENV) results
