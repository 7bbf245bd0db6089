# The two commands of the README are `make demo` and `make test`; both set up what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests start hundreds of interpreters, which must not compile the same modules each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test pages lint audit bench bench-idle bench-ranks bench-marks bench-profile bench-analysis bench-closing bench-device bench-faults bench-fleet generate hta integrations newest nightly npu traces docs versions versions-ci fuzz soak storm dist clean

demo: $(VENV)-demo/ready
	$(VENV)-demo/bin/dynprof demo

# The tests that need neither torch nor sleeping: about a minute.
quick: $(VENV)/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/fuzz

test: $(VENV)/ready
	$(BIN)/python -m compileall -q dynprof  # once, not in each of six workers
	$(BIN)/pytest -n 6 --dist worksteal -m "not browser" --ignore tests/integrations

# The report, and traces in Perfetto's page, in a real Chromium.
pages: $(VENV)/ready
	$(BIN)/pytest -n 2 -m browser tests/integration

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
bench: bench-idle bench-ranks bench-fleet bench-marks bench-profile bench-analysis bench-closing

bench-idle: $(VENV)/ready
	$(BIN)/python -m benchmarks.idle_step
	$(BIN)/python -m benchmarks.step_sources
	$(BIN)/python -m benchmarks.save_to_pending
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.attaching
	$(BIN)/python -m benchmarks.command_start

# Ranks that agree on a step.
bench-ranks: $(VENV)/ready
	$(BIN)/python -m benchmarks.agreement
	$(BIN)/python -m benchmarks.opening

# The metrics of a thousand jobs, and of a job of 10,000 ranks.
bench-fleet: $(VENV)/ready
	$(BIN)/python -m benchmarks.fleet

# A mark, from Python and from C, next to others' marks; phases and marks in a training step.
bench-marks: $(VENV)/ready
	$(BIN)/python -m benchmarks.marks
	$(BIN)/python -m benchmarks.marked_steps

# dynprof.profiler.profile next to torch.profiler.profile, on the same loop.
bench-profile: $(VENV)/ready
	$(BIN)/python -m benchmarks.static_profile

# From a trace to tables, next to other readers; and 4,096 ranks.
bench-analysis: $(VENV)-hta/ready
	$(VENV)-hta/bin/pip install --quiet --disable-pip-version-check orjson
	$(VENV)-hta/bin/python -m benchmarks.analysis
	$(VENV)-hta/bin/python -m benchmarks.ranks

# Closing a window next to torch.profiler, ten of each, and inline; the memory of 300 windows and of
# one event.
bench-closing: $(VENV)/ready
	$(BIN)/python -m benchmarks.closing
	$(BIN)/python -m benchmarks.inline_close
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.events

# On a machine with a GPU: both ways of closing a window record the same, and what each costs.
bench-device: $(VENV)/ready
	$(BIN)/python -m benchmarks.device cuda

# Jobs with an injected fault, and what dynprof says about them; then quiet series. About half
# an hour. One fault: python -m benchmarks.faults NAME. Two faults need root: they make a control
# group, and a network with a slow link.
bench-faults: $(VENV)/ready
	$(BIN)/python -m benchmarks.faults

# The JSON Schema and docs/settings.md, from the config's model; docs/query.md, from the views; in
# docs/seeds.md what each cited test asserts.
generate: $(VENV)/ready
	$(BIN)/python -m schemas.generate

# Reads a capture with the real HolisticTraceAnalysis. Its declared requirements bring half a
# gigabyte of notebook; these are the ones that it imports.
hta: $(VENV)-hta/ready
	$(VENV)-hta/bin/python -c "import torch, hta.trace_analysis"
	$(VENV)-hta/bin/pytest tests/hta

# The callbacks in the real frameworks and trackers, on the CPU, ranks on two hosts, analysis on a
# cluster, and the chart in Helm: 2.5 GB, most of it torch, ray and pyarrow.
integrations: $(VENV)-integrations/ready
	$(VENV)-integrations/bin/python -c "import accelerate, lightning, ray.train, transformers"
	$(VENV)-integrations/bin/python -c "import kubernetes_validate, mlflow, tensorboard, wandb"
	$(VENV)-integrations/bin/pytest tests/integrations

# What would notice that the newest torch of the package index has changed: the self-test of the
# detached close, which fails where windows would close inline, the benchmarks of closing with three
# windows each, and the tests of backends. Its own environment; the torch of PyPI for Linux is a
# build for CUDA of several GB. pip takes another index or other settings from its environment.
NEWEST := $(VENV)-newest/bin
newest: $(VENV)-newest/ready
	$(NEWEST)/pip install --quiet --disable-pip-version-check --upgrade torch
	$(NEWEST)/python -m tests.selftest
	$(NEWEST)/python -m benchmarks.closing 3 cpu mlp
	$(NEWEST)/python -m benchmarks.inline_close 3
	$(NEWEST)/pytest -n 2 tests/integration/backends

# The tests on Python 3.11 to 3.14, as far as they are here, on PATH or under pyenv; one has the
# lowest versions of everything. With torch, which is gigabytes for each; without it at night.
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

# Ten minutes of a job whose operator saves all the time: nothing may grow, and each save has an
# answer. Then some ten minutes of ranks that agree, with torchrun and without.
soak: $(VENV)/ready
	$(BIN)/python -m tests.soak.soak
	for job in "100 2 1 torchrun" "100 4 20 torchrun" "100 8 5 torchrun" "100 2 200 torchrun" "30 4 5"; do \
	    $(BIN)/python -m tests.soak.ranks $$job || exit 1; done

# The documentation site, in build/site; a link that leads nowhere is an error.
docs: $(VENV)-docs/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet

# What no single change has to pass: other versions of Python, and what runs for hours.
nightly: versions-ci soak fuzz storm traces docs dist

# The analysis of each real trace in a folder; `make test` reads a few small ones.
DYNPROF_TRACES ?= $(CURDIR)/../shared/traces
traces: $(VENV)/ready
	DYNPROF_TRACES=$(DYNPROF_TRACES) $(BIN)/pytest -n 6 --dist worksteal tests/unit/analysis \
	    tests/integration/analysis

# Jobs to which much of docs/guarantees.md happens at once, each of its own seed, for STORM_S seconds.
STORM_S ?= 3600
storm: $(VENV)/ready
	$(BIN)/python -m tests.storm.storm $(STORM_S)

# Ascend: the Python layer of three versions of torch_npu over a stub of its native module, and the
# names of the newest version.
npu: $(VENV)/ready
	$(BIN)/python tests/npu/fetch.py $(VENV)-npu
	TORCH_NPU_WHEELS=$(CURDIR)/$(VENV)-npu $(BIN)/pytest tests/npu \
	    tests/integration/analysis/test_vendors_database.py \
	    tests/integration/analysis/test_tables.py::test_headers_are_the_vendors

# What a package index takes: the sources and a wheel for each architecture, checked, installed into
# empty environments and run; and a CycloneDX list of all that is installed. All in dist/.
dist: $(VENV)-dist/ready
	$(VENV)-dist/bin/python -m tests.distributions

# dynprof and torch alone. On indexes that serve CUDA builds torch is gigabytes: docs/installing.md.
$(VENV)-demo/ready: pyproject.toml
	@echo "Setting up $(VENV)-demo: downloads dynprof with its requirements (65 MB) and torch"
	@echo "(192 MB as a CPU build; gigabytes as a CUDA build, see docs/installing.md)."
	$(PYTHON) -m venv $(VENV)-demo
	$(VENV)-demo/bin/pip install --quiet --disable-pip-version-check -e ".[all]" "torch==2.13.0"
	touch $@

$(VENV)/ready: pyproject.toml
	@echo "Setting up $(VENV) with the tests' requirements: some minutes the first time, 390 MB to download."
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

$(VENV)-newest/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/pip install --quiet --disable-pip-version-check -e ".[test,torch]"
	touch $@

$(VENV)-dist/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/pip install --quiet --disable-pip-version-check \
	    build twine auditwheel ziglang cyclonedx-bom
	touch $@

$(VENV)-docs/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check "mkdocs-material>=9.6,<10"
	touch $@

$(VENV)-integrations/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/pip install --quiet --disable-pip-version-check \
	    -e ".[all,accelerate,dask,huggingface,lightning,ray,serve]" pytest pytest-timeout hypothesis \
	    "torch==2.13.0" wandb mlflow-skinny tensorboard kubernetes-validate pyyaml \
	    "helm-python-sdk; platform_machine == 'x86_64'"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
