# Set-up, the two commands of the README, and the site. Needs git, make, Python >= 3.11 and its venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: demo test test-as-users test-slow test-all test-lowest test-gpu lint new-check types docs clean

# The demo needs less than the tests: what requirements.txt has under core, train and report, and no TensorFlow.
demo: .venv/demo
	$(BIN)/python main.py --config=configs/fashion_mnist_small_savuc.py --workdir=runs/fashion_mnist_small_savuc

test: .venv/ready lint
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

# Commands as users type them, with none of the tests' flags for JAX.
test-as-users: .venv/ready
	$(BIN)/python -m tests.as_users

# The lowest versions that pyproject.toml allows of what the library, training and these tests need. Those of NumPy and
# SciPy have wheels for Python 3.11 and 3.12 alone.
LOWEST_PYTHON := $(shell for p in python3.11 python3.12; do $$p --version >/dev/null 2>&1 && echo $$p && break; done)
LOWEST := $$(grep -E '^(dependencies|train|test) = ' pyproject.toml | grep -oE '[a-z-]+>=[0-9.]+' | sed 's/>=/==/')
LOWEST_TESTS := tests/losses/test_laws.py tests/metrics/test_scores.py tests/training/test_going_on.py \
  tests/test_own.py calib_jax/calibrators/linear.py
test-lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest -n 2 --dist loadgroup -m "not slow" $(LOWEST_TESTS)

# The slow tests, and the laws of the losses once more with all of XLA's optimisations, as users compile.
FULL := CALIB_JAX_FULL_OPTIMIZATION=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" \
  tests/losses/test_laws.py tests/_numerics/test_softmax.py

test-slow: .venv/ready $(if $(LOWEST_PYTHON),test-lowest)
	$(BIN)/python -m pytest -n auto --dist loadgroup -m slow tests
	$(FULL)

# All tests, which share here what both kinds compile and train.
test-all: .venv/ready lint
	$(BIN)/python -m pytest -n auto --dist loadgroup
	$(FULL)

# On one GPU, in one process: formulas, their gradients, fits, training and resumption. JAX must see the GPU, for which
# `pip install "jax[cuda13]"` in .venv; without one the same tests run on the CPU, with quotients rounded as GPUs do.
GPU_TESTS := tests/metrics/test_binned.py tests/metrics/test_unbinned.py tests/metrics/test_ranking.py \
  tests/losses/test_per_batch.py tests/losses/test_per_example.py tests/calibrators/test_optima.py \
  tests/training/test_steps.py tests/training/test_calls.py
test-gpu: .venv/ready
	JAX_PLATFORMS= XLA_PYTHON_CLIENT_PREALLOCATE=false $(BIN)/python -m pytest -p tests.gpu_rounding -n 0 -m "not slow" \
	  $(GPU_TESTS)

lint: .venv/ready
	$(BIN)/ruff check .

# What a new loss, calibrator, metric or other part still lacks; it writes the losses' types.
new-check: .venv/ready
	$(BIN)/python -m tests.new_check

types: .venv/ready
	$(BIN)/pyrefly check

# The site, in docs/_build/html. Sphinx and what it needs have an environment of their own; the build needs no network.
docs: .venv-docs/ready
	rm -rf docs/api/generated  # Pages of names that are no longer there.
	.venv-docs/bin/python -m sphinx --fail-on-warning --keep-going -c docs . docs/_build/html

# uv installs faster than pip, where it is at hand.
PIP = $(if $(shell command -v uv),uv pip install --quiet --python $(@D)/bin/python,\
  $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile)
VENV = test -n "$(PYTHON)" || { echo "calib_jax needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }; \
  test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)

.venv/demo: requirements.txt
	@$(VENV)
	$(PIP) -c $< $$(sed -n '/^# core/,/^# data/p; /^# report/,/^# test/p' $< | grep -v '^#')
	touch $@

.venv/ready: requirements.txt
.venv-docs/ready: requirements.txt docs/requirements.txt
.venv/ready .venv-docs/ready:
	@$(VENV)
	$(PIP) $(addprefix -r ,$^)
	$(@D)/bin/python -m compileall -q -j 0 -x tensorflow $(@D)/lib || true  # On all cores; pip compiles on one.
	touch $@

.venv-lowest/ready: PYTHON := $(LOWEST_PYTHON)
.venv-lowest/ready: pyproject.toml
	@$(VENV)
	$(PIP) $(LOWEST)
	touch $@

clean:
	rm -rf .venv .venv-docs .venv-lowest runs docs/_build .pytest_cache .ruff_cache
