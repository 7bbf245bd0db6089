# The two commands of the README are `make demo` and `make test`; both set up what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests start hundreds of interpreters: they are not to compile the same modules each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test lint audit bench bench-idle bench-ranks bench-marks bench-profile bench-analysis bench-closing bench-device generate hta integrations npu versions versions-ci fuzz soak storm clean

demo: $(VENV)/ready
	$(BIN)/dynprof demo

# What needs neither torch nor sleeping.
quick: $(VENV)/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/fuzz

test: $(VENV)/ready
	$(BIN)/pytest -n 4 --dist worksteal

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known weaknesses of code, and of the versions that dynprof needs; the latter are in a database
# that not every machine can reach, which is said.
audit: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check "bandit[toml]" pip-audit
	$(BIN)/bandit --quiet --configfile pyproject.toml -ll -ii --recursive dynprof
	$(BIN)/python -m tests.audit

# All of it takes about an hour and a half, most of it closing windows of 100 steps.
bench: bench-idle bench-ranks bench-marks bench-profile bench-analysis bench-closing

bench-idle: $(VENV)/ready
	$(BIN)/python -m benchmarks.idle_step
	$(BIN)/python -m benchmarks.step_sources
	$(BIN)/python -m benchmarks.save_to_armed
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.attaching

# Ranks that agree on a step, and the status of many.
bench-ranks: $(VENV)/ready
	$(BIN)/python -m benchmarks.agreement
	$(BIN)/python -m benchmarks.status_of_many
	$(BIN)/python -m benchmarks.coordinated_step
	$(BIN)/python -m benchmarks.beside_replies

# A mark, from Python and from C, beside others' marks; phases and marks in a training step.
bench-marks: $(VENV)/ready
	$(BIN)/python -m benchmarks.marks
	$(BIN)/python -m benchmarks.marked_steps

# dynprof.profiler.profile beside torch.profiler.profile, on the same loop.
bench-profile: $(VENV)/ready
	$(BIN)/python -m benchmarks.static_profile

# From a trace to tables, beside other readers; and 4,096 ranks.
bench-analysis: $(VENV)-hta/ready
	$(VENV)-hta/bin/pip install --quiet --disable-pip-version-check orjson
	$(VENV)-hta/bin/python -m benchmarks.analysis
	$(VENV)-hta/bin/python -m benchmarks.ranks

# Closing a window beside torch.profiler, ten of each, memory over 300 windows, and what an event takes.
bench-closing: $(VENV)/ready
	$(BIN)/python -m benchmarks.closing
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.events

# On a machine with a GPU: both ways of closing a window record the same, and what each costs.
bench-device: $(VENV)/ready
	$(BIN)/python -m benchmarks.device cuda

# The JSON Schema and docs/settings.md, from the config's model.
generate: $(VENV)/ready
	$(BIN)/python schemas/generate.py

# Reads a capture with the real HolisticTraceAnalysis. Its declared requirements bring half a
# gigabyte of notebook; these are the ones that it imports.
hta: $(VENV)-hta/ready
	$(VENV)-hta/bin/python -c "import torch, hta.trace_analysis"
	$(VENV)-hta/bin/pytest tests/hta

# The callbacks in the real frameworks, on the CPU: 1.9 GB, most of it torch, ray and pyarrow.
integrations: $(VENV)-integrations/ready
	$(VENV)-integrations/bin/python -c "import accelerate, lightning, ray.train, transformers"
	$(VENV)-integrations/bin/pytest tests/integrations

# The tests on Python 3.10 to 3.13, as far as they are here, on PATH or under pyenv; one has the
# lowest versions of everything. With torch, which is gigabytes for each; without it in CI.
# UV_TORCH_BACKEND=cpu makes torch small where uv can reach such builds.
versions: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	tests/versions.sh test,torch

versions-ci: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	tests/versions.sh test

# Coverage-guided, for FUZZ_S seconds, on from the kept corpus; what it adds is kept as well.
FUZZ_S ?= 600
fuzz: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python -m tests.fuzz.fuzz -max_total_time=$(FUZZ_S) -timeout=10 -max_len=4096 \
	    -print_final_stats=1 tests/fuzz/corpus

# Ten minutes of a job beside a restless operator: nothing may grow, nothing be unaccounted for. Then
# some ten more of ranks that agree, under torchrun and without.
soak: $(VENV)/ready
	$(BIN)/python -m tests.soak.soak
	for job in "100 2 1 torchrun" "100 4 20 torchrun" "100 8 5 torchrun" "100 2 200 torchrun" "30 4 5"; do \
	    $(BIN)/python -m tests.soak.ranks $$job || exit 1; done

# Jobs to which everything happens at once, each of its own seed, for STORM_S seconds.
STORM_S ?= 3600
storm: $(VENV)/ready
	$(BIN)/python -m tests.storm.storm $(STORM_S)

# Ascend: the Python layer of three versions of torch_npu over a stub of its native module.
npu: $(VENV)/ready
	$(BIN)/python tests/npu/fetch.py $(VENV)-npu
	TORCH_NPU_WHEELS=$(CURDIR)/$(VENV)-npu $(BIN)/pytest tests/npu \
	    tests/integration/analysis/test_vendors_database.py \
	    tests/integration/analysis/test_tables.py::test_headers_are_the_vendors

$(VENV)/ready: pyproject.toml
	@echo "Setting up $(VENV): some minutes the first time, mostly for torch (200 MB)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(VENV)-hta/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-hta
	$(VENV)-hta/bin/pip install --quiet --disable-pip-version-check -e ".[dev]" \
	    "pandas<3" networkx plotly psutil pyyaml
	$(VENV)-hta/bin/pip install --quiet --disable-pip-version-check --no-deps \
	    "HolisticTraceAnalysis==0.5.0"
	touch $@

$(VENV)-integrations/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/pip install --quiet --disable-pip-version-check \
	    -e ".[accelerate,huggingface,lightning,ray]" pytest pytest-timeout hypothesis \
	    "torch==2.13.0"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
