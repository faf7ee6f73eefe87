# Every target works from a fresh clone: the environment is built on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# `make test SKIP=browser` leaves kinds of tests out; nothing is skipped by itself.
KINDS  := unit integration browser
comma  := ,
LEFT_OUT := $(subst $(comma), ,$(SKIP))

.PHONY: ddp smoke test lint format clean $(KINDS)

ddp smoke: $(READY)
	$(BIN)/disttest $@

test: lint $(filter-out $(LEFT_OUT),$(KINDS))

unit: $(READY)
	$(BIN)/python -m pytest tests/unit

integration: $(READY)
	$(BIN)/python -m pytest tests/integration

browser: $(READY) tests/browser/node_modules/.ready
	$(BIN)/python -m pytest tests/browser

tests/browser/node_modules/.ready: tests/browser/package-lock.json
	npm ci --prefix tests/browser --ignore-scripts --no-audit --no-fund
	touch $@

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
