"""The library half needs jax, optax and numpy alone."""

import sys

from tests.programs import python

# Everything else that is installed here, but for what jax and optax themselves are made of.
FOREIGN = ("flax", "tensorflow", "tensorflow_datasets", "clu", "orbax", "ml_collections", "sklearn", "matplotlib",
           "jinja2", "grain", "tensorboard", "pytest", "etils")


def test_losses_metrics_and_calibrators_import_with_jax_optax_and_numpy_alone(tmp_path):
  names = "calib_jax.losses, calib_jax.metrics, calib_jax.calibrators, calib_jax.confidence, calib_jax.focal_map"
  done = python("-c", f"import {names}; print('fine')", tmp_path=tmp_path, blocked=FOREIGN)
  assert done.returncode == 0, done.stderr
  assert done.stdout == "fine\n"


def test_the_library_half_brings_in_nothing_else(tmp_path):
  code = ("import sys, jax, optax, numpy; before = set(sys.modules);"
          "import calib_jax.losses, calib_jax.metrics, calib_jax.calibrators;"
          "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))")
  done = python("-c", code, tmp_path=tmp_path)
  assert done.returncode == 0, done.stderr
  new = set(done.stdout.split()) - set(sys.stdlib_module_names)
  assert new <= {"calib_jax", "jax", "optax", "numpy", "jaxlib"}, new


def test_a_run_on_digits_starts_without_importing_tensorflow(tmp_path):
  code = "import sys, main; print([m for m in ('tensorflow', 'matplotlib', 'tensorflow_datasets') if m in sys.modules])"
  done = python("-c", code, tmp_path=tmp_path)
  assert done.stdout == "[]\n", done.stderr
