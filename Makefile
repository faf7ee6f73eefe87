# Every target works from a fresh clone: the environment is built on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: ddp smoke test lint format clean catalogue

ddp smoke: $(READY)
	$(BIN)/disttest $@

test: lint unit integration

catalogue: $(READY)
	$(BIN)/python scripts/catalogue.py

unit: $(READY)
	$(BIN)/python -m pytest tests/unit

integration: $(READY)
	$(BIN)/python -m pytest tests/integration

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
