# make demo   set everything up in .venv and run the main job        make bench      our methods beside their peers, one run
# make test   set everything up in .venv and run the test suite      make bench-gpu  our engine's own cost at 7B size, on a GPU
# make check  lint, format, types
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
EXAMPLE := examples/cloud-edge-speculative-decoding

.PHONY: demo test check bench bench-gpu setup

setup: $(VENV)/installed

# Torch comes first and pinned: a range would pull another build with gigabytes of accelerator libraries.
$(VENV)/installed: requirements.txt pyproject.toml host/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . -e host
	@touch $@

demo: setup
	$(BIN)/ianvs -f $(EXAMPLE)/benchmarkingjob.yaml

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m bench

bench-gpu: setup
	$(BIN)/python -m bench.engine
