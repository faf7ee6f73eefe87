# Every target works from a fresh clone: the environment is built on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

SUITES := smoke collectives ddp threaded rpc dist_autograd fsdp
# Kinds of tests, cheap ones first. `make test SKIP=browser,devices` leaves some out; nothing is skipped by itself.
KINDS    := unit contract integration devices cluster docker browser compat-sample
comma    := ,
LEFT_OUT := $(subst $(comma), ,$(SKIP))

.PHONY: test action lock lint format catalogue compat mutants faults soak docs clean $(SUITES) $(KINDS)

$(SUITES): $(READY)
	$(BIN)/disttest $@

test: lint catalogue $(filter-out $(LEFT_OUT),$(KINDS))

$(KINDS): $(READY)
	$(BIN)/python -m pytest --durations=8 tests/$(@:-sample=)

# torch's own suites under both harnesses, in full: hours. `make test` compares with what this recorded.
compat: $(READY)
	$(BIN)/python -m pytest tests/compat --full

browser: tests/browser/node_modules/.ready

contract: tests/contract/node_modules/.ready

tests/%/node_modules/.ready: tests/%/package-lock.json
	npm ci --prefix tests/$* --ignore-scripts --no-audit --no-fund
	touch $@

# action.yml's inputs, outputs and variables, and their tables in the docs, from the code that reads them.
action: $(READY)
	PYTHONPATH=tests/support $(BIN)/python tests/support/action_files.py

# The lock files of the image and of the launcher, after a change of pyproject.toml or constraints.txt.
lock: $(READY)
	PATH=$(abspath $(BIN)):$$PATH requirements/lock

catalogue: $(READY)
	$(BIN)/python scripts/catalogue.py

# Plants faults in torch, one at a time, and fails when the suites do not notice one (half an hour on two cores).
mutants: $(READY)
	$(BIN)/python -m tests.mutants.run

# Every fault in every phase, by the first and the last rank, in every kind of world; and a flood of 1 GB.
faults: $(READY)
	$(BIN)/python -m pytest tests/integration/test_fault_matrix.py --full

# Ten minutes of the matrix mixed with 2,000 good tests, then a hundred runs cancelled at random moments.
soak: $(READY)
	$(BIN)/python bench/soak.py
	$(BIN)/python -m pytest tests/integration/test_cancel.py --trials 100

docs: $(READY)
	$(BIN)/python scripts/suites_doc.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dev]'
	touch $@

clean:
	rm -rf $(VENV) results
