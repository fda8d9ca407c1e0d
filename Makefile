# Every recipe is one call of the package; the virtual environment is made on demand.
# Variables: PLATFORM MODEL PLAN GPUS NODES BUDGET CONTAINER IMAGE RUNS RENDERER ARGS (passed to the command as they are).
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
RUNS ?= runs
RENDERER ?= auto
PIP_ARGS ?=
# Files of tests that run at once: one more than there are cores, as many of them wait for processes
# that they start. With those, each takes up to 2 GB of memory; beyond 8 the longest file decides.
TEST_JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 8 ? cores + 1 : 8)))
# In the order that tests/conftest.py gives them, which begins with the longest.
AT_ONCE := -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
PY := $(VENV)/bin/python
SCALEBOOK := $(PY) -m scalebook
# An image that ships torch keeps it: the environment sees the image's packages (also where they are
# in a virtual environment themselves, hence image.pth) and adds none of `train`. Such images
# pin packages by themselves (PIP_CONSTRAINT), which the lock must not contradict.
HAS_TORCH := $(shell $(PYTHON) -c "import importlib.util as u; print('yes' if u.find_spec('torch') else '')" 2>/dev/null)
# Where a container engine or a cluster runs the training, this machine needs no torch of its own.
IN_IMAGE := $(or $(filter slurm,$(LAUNCHER)),$(filter-out auto none,$(CONTAINER)),$(if $(filter none,$(CONTAINER)),,$(if $(filter-out cpu,$(PLATFORM)),$(firstword $(foreach engine,docker podman apptainer enroot,$(shell command -v $(engine) 2>/dev/null))))))
TRAIN := $(if $(HAS_TORCH)$(IN_IMAGE),,train,)
READY := $(VENV)/.run$(if $(IN_IMAGE),-image)
INSTALL = $(PY) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) $(if $(HAS_TORCH),,--constraint requirements.lock) --editable
# One word of the shell, whatever a path or a name holds; ARGS alone is read by the shell as it is.
home = $(if $(filter ~/%,$1),$(subst ~/,$(HOME)/,$1),$1)
q = '$(subst ','\'',$(call home,$1))'
option = $(if $2,$1 $(call q,$2))
IN := $(call option,--container,$(CONTAINER)) $(call option,--image,$(IMAGE))
SELECT := $(call option,--platform,$(PLATFORM)) $(call option,--plan,$(PLAN)) $(call option,--model,$(MODEL)) $(call option,--gpus,$(GPUS)) $(call option,--nodes,$(NODES)) $(call option,--launcher,$(LAUNCHER)) $(call option,--engine,$(ENGINE)) $(IN)

$(PY):
	$(PYTHON) -m venv $(if $(HAS_TORCH),--system-site-packages) $(VENV)
	$(if $(HAS_TORCH),$(PYTHON) -c "import site; print(*site.getsitepackages(), sep='\n')" > $$($@ -c "import site; print(site.getsitepackages()[0])")/image.pth)

$(VENV)/.run $(VENV)/.run-image: $(PY) pyproject.toml requirements.lock
	@echo "Setting up $(VENV): trainer, notebooks and report"
	$(INSTALL) ".[run,$(TRAIN)report]"
	@touch $@

$(VENV)/.report: $(PY) pyproject.toml requirements.lock
	@echo "Setting up $(VENV): report"
	$(INSTALL) ".[report]"
	@touch $@

$(VENV)/.test: $(PY) pyproject.toml requirements.lock
	@echo "Setting up $(VENV): trainer, notebooks, report, tests and linters"
	$(INSTALL) ".[run,$(TRAIN)report,test]"
	@touch $(READY) $(VENV)/.report $@

$(VENV)/.lab: $(VENV)/.run
	$(INSTALL) ".[run,report,lab]"
	@touch $@

.PHONY: help setup run resume report open demo tune plan list test test-again test-fast test-shuffled mutate soak image verify doctor test-containers test-slurm lint bench-report bench-list bench-overhead bench-predict bench-steady check-notebooks format lab lock clean

help:  ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PLATFORM=cpu|h100|mi300x|... MODEL= PLAN=runs/plans/NAME.toml GPUS= NODES= RUNS=runs ARGS="
	@echo "           CONTAINER=auto|docker|podman|apptainer|enroot|none IMAGE= (containers/README.md)"
	@echo "           LAUNCHER=slurm (containers/slurm/README.md) ENGINE=megatron|nemo|primus"
	@echo "           BUDGET=480 (seconds, of make tune)"
	@echo "By hand:   . $(VENV)/bin/activate, then scalebook --help"

setup: $(READY)  ## Make the virtual environment of `make run`

run: $(READY)  ## Train every configuration of a plan, then build the report
	$(SCALEBOOK) run $(SELECT) --runs $(call q,$(RUNS)) $(ARGS)
	$(SCALEBOOK) report --runs $(call q,$(RUNS)) --renderer $(call q,$(RENDERER))

resume: run  ## Another name of run: finished configurations are skipped

report: $(VENV)/.report  ## Build the report from RUNS (no GPU, no torch; ONE_FILE=1: one HTML file for mail)
	$(SCALEBOOK) report --runs $(call q,$(RUNS)) --renderer $(call q,$(RENDERER)) $(if $(ONE_FILE),--one-file) $(ARGS)

open: $(VENV)/.report  ## Open the report in a browser
	$(SCALEBOOK) open

demo: $(VENV)/.report  ## Build the report from the committed example runs, in reports/_demo
	$(SCALEBOOK) demo --renderer $(call q,$(RENDERER)) $(if $(ONE_FILE),--one-file) $(ARGS)

tune: $(READY)  ## Find the fastest layout of MODEL on GPUS in BUDGET seconds, then build the report
	$(SCALEBOOK) tune $(call option,--model,$(MODEL)) --platform $(call q,$(or $(PLATFORM),cpu)) $(call option,--gpus,$(GPUS)) --budget-seconds $(call q,$(or $(BUDGET),480)) --runs $(call q,$(RUNS)) $(IN) $(ARGS)
	$(SCALEBOOK) report --runs $(call q,$(RUNS)) --renderer $(call q,$(RENDERER))

plan: $(READY)  ## Dry run: every configuration, its memory, its command; starts nothing
	$(SCALEBOOK) run $(SELECT) --runs $(call q,$(RUNS)) --dry-run $(ARGS)

image: $(VENV)/.report  ## Build the container image of PLATFORM
	$(SCALEBOOK) image --platform $(call q,$(or $(PLATFORM),cpu)) $(IN) $(ARGS)

verify: $(VENV)/.report  ## Compare the versions inside the image of PLATFORM with what is known of it
	$(SCALEBOOK) verify --platform $(call q,$(or $(PLATFORM),cpu)) $(IN) $(ARGS)

doctor: $(VENV)/.report  ## Check this machine: devices, limits, memory, disk; changes nothing
	$(SCALEBOOK) doctor --runs $(call q,$(RUNS)) $(ARGS)

list: $(VENV)/.report  ## Print a table of the runs
	$(SCALEBOOK) list --runs $(call q,$(RUNS)) $(ARGS)

test: $(VENV)/.test  ## Run all tests (one trains for real on the CPU)
	$(PY) -m pytest $(AT_ONCE) -rs $(ARGS)

test-again: $(VENV)/.test  ## Run what failed last, one test at a time: what passes now was in the way of the others
	$(PY) -m pytest --last-failed --last-failed-no-failures none -p no:xdist -rA $(ARGS)

test-fast: $(VENV)/.test  ## Run the tests that are not marked slow
	$(PY) -m pytest $(AT_ONCE) -rs -m "not slow" $(ARGS)

test-shuffled: $(VENV)/.test  ## Run the tests that are not slow in an order of chance (SEED=7 repeats one)
	SEED=$(call q,$(SEED)) PYTHONPATH=tests/tools $(PY) -m pytest -p shuffled $(AT_ONCE) -rs -m "not slow" $(ARGS)

mutate: $(VENV)/.test  ## Change the numeric core in 300 places and list what its tests miss (15 minutes)
	$(PY) tests/tools/mutate.py --jobs $(TEST_JOBS) $(ARGS)

soak: $(VENV)/.test  ## Kill processes of real commands 200 times at random (hours; ARGS="--kills 25", or "--runs 1000")
	$(PY) tests/tools/soak.py $(ARGS)

test-containers: $(VENV)/.test  ## Build, run and kill real containers (root; installs podman by apt, and says so)
	tests/containers/install.sh
	SCALEBOOK_TEST_CONTAINERS=1 $(PY) -m pytest tests/containers -rs $(ARGS)

test-slurm: $(VENV)/.test  ## Run jobs on a real Slurm cluster of two namespaced hosts (root; installs Slurm by apt)
	tests/slurm/install.sh
	SCALEBOOK_TEST_SLURM=1 $(PY) -m pytest tests/slurm -rs $(ARGS)

lint: $(VENV)/.test  ## Check style, types, import order and that notebooks hold no output
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(PY) -m pyright && $(VENV)/bin/lint-imports
	$(VENV)/bin/nbstripout --verify notebooks/*.ipynb

bench-list: $(VENV)/.test  ## Time `scalebook list` over many simulated runs and one long run
	$(PY) tests/benchmarks/bench_list.py $(ARGS)

bench-report: $(VENV)/.test  ## Time the report of 10,000 simulated runs (ARGS="--runs 1000" for fewer)
	$(PY) tests/benchmarks/bench_report.py $(ARGS)

bench-overhead: $(VENV)/.test  ## Time a run's steps and start against bare torchrun, in turns
	$(PY) tests/benchmarks/bench_overhead.py $(ARGS)

bench-steady: $(VENV)/.test  ## Tables of how often an interval of a rate holds the truth
	$(PY) tests/benchmarks/bench_steady.py $(ARGS)

bench-predict: $(VENV)/.test  ## Compare predicted step times with measured and published ones
	$(PY) tests/benchmarks/bench_predict.py $(ARGS)

check-notebooks: $(VENV)/.test  ## Check the notebooks' rules alone
	$(PY) -m pytest tests/notebooks/test_notebook_rules.py
	$(VENV)/bin/nbstripout --verify notebooks/*.ipynb

format: $(VENV)/.test  ## Format the code, strip the notebooks, renew the page of columns
	$(PY) -m ruff check --fix . ; $(PY) -m ruff format .
	$(VENV)/bin/nbstripout notebooks/*.ipynb
	$(SCALEBOOK) columns --markdown > src/scalebook/report/COLUMNS.md

lab: $(VENV)/.lab  ## Open the notebooks in JupyterLab
	$(VENV)/bin/jupyter lab notebooks

lock: $(VENV)/.test $(VENV)/.lab  ## Write the installed versions to requirements.lock, and the hashes of their files to requirements.sha256
	$(PY) -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock
	$(PY) tests/tools/lock_hashes.py requirements.lock > requirements.sha256

clean:  ## Remove the report and caches; never touches runs/
	rm -rf reports/_site reports/_demo reports/.cache reports/.quarto .pytest_cache .ruff_cache .hypothesis
