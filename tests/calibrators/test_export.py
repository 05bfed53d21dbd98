"""A fitted calibrator as one file, of NumPy or of ONNX, gives the probabilities that ``apply`` gives."""

import ast
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from tests.calibrators.data import CASES, SHAPE, VARIANTS, grouped, made, synthetic

KINDS = ("numpy", "onnx")
# Together they apply each of JAX's operations that any calibrator applies.
EXPORTED = ("temperature_scaling", "structured_matrix_scaling", "parameterized_temperature_scaling",
            "beta_calibration", "histogram_binning", "cross venn_abers", "label_shift", "spline_calibration",
            "top isotonic")


def _served(fitted, kind, **options):
  """The probabilities of logits by a file, which is all that is used of the calibrator."""
  if kind == "onnx":
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(calibrators.export(fitted, kind, **options), providers=["CPUExecutionProvider"])
    return lambda logits: session.run(["probs"], {"logits": logits})[0]
  contents = calibrators.export(fitted, kind, **options)
  imports = [node for node in ast.walk(ast.parse(contents)) if isinstance(node, ast.Import | ast.ImportFrom)]
  assert [ast.unparse(node) for node in imports] == ["import numpy as np"]
  module = {}
  exec(contents, module)
  return module["calibrate"]


def _hard(rows, classes):
  """Ordinary logits; ties, also of the largest; 1e4 and -1e4; -inf options, down to one; and rows far from 0."""
  rng = np.random.default_rng(7)
  z = 3 * rng.normal(size=(rows, classes))
  only = np.arange(classes) == rng.integers(0, classes, rows)[:, None]
  absent = (rng.random(z.shape) < 0.4) & ~only
  kinds = [z, np.round(z), 1e4 * only, -1e4 * only, np.full_like(z, 1e4), 0 * z, np.where(absent, -np.inf, z),
           np.where(only, z, -np.inf), 300 * z, 1e4 + np.round(z), np.where(absent, -1e4, z), z]
  return np.select([(np.arange(rows) % len(kinds) == i)[:, None] for i in range(len(kinds))], kinds).astype(np.float32)


def _check(fitted, apply, kind, logits):
  actual, expected = _served(fitted, kind)(logits), np.exp(apply(fitted.params, logits))
  assert actual.dtype == np.float32 and actual.shape == logits.shape
  # Sums and products of large logits round to an eps of them. The functions of isotonic regression may be steep, and
  # the iterations of label shift end within 1e-6 of a maximum.
  ordinary = 1e-5 if any(name in fitted.calibrator.name for name in ("isotonic", "label_shift")) else 1e-6
  size = np.abs(logits).max(axis=1, where=np.isfinite(logits), initial=0)
  allowed = np.where(size < 100, ordinary, np.finfo(np.float32).eps * size)
  error = np.abs(actual - expected).max(axis=1)
  assert (error <= allowed).all(), (np.flatnonzero(error > allowed), error[error > allowed])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", [*grouped(EXPORTED), *(pytest.param(name, marks=pytest.mark.slow)
                                                           for name in CASES if name not in EXPORTED)])
def test_a_file_gives_what_apply_gives(variant, kind):
  name, options = VARIANTS[variant]
  calibrator, (logits, labels) = made(name, **options), synthetic(*SHAPE)
  params = calibrator.fit(logits, labels, where=np.ones(len(labels), bool))
  fitted = calibrators.Fitted(calibrators.get(name, **options), params)
  _check(fitted, calibrator.apply, kind, _hard(*SHAPE))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["venn_abers", "platt", "record_calibration"])
def test_a_file_of_two_classes_gives_what_apply_gives(name, kind):
  # The params of the last one do not say that classes are two.
  calibrator, fitted = made(name), calibrators.get(name).fitted(*synthetic(300, 2))
  _check(fitted, calibrator.apply, kind, _hard(120, 2))


def _own(apply, params=None):
  return calibrators.Fitted(calibrators.Calibrator(lambda logits, labels: {}, apply), params or {})


def test_rows_may_have_any_leading_axes_and_wrong_ones_are_refused(tmp_path):
  fitted = calibrators.vector_scaling().fitted(*synthetic(60, 4))
  path = tmp_path / "calibrator.py"
  assert calibrators.export(fitted, "numpy", path) == path.read_bytes()
  calibrate, logits = _served(fitted, "numpy"), synthetic(6, 4)[0]
  np.testing.assert_array_equal(calibrate(logits.astype(float).reshape(3, 2, 4)), calibrate(logits).reshape(3, 2, 4))
  np.testing.assert_array_equal(calibrate(logits.tolist())[3], calibrate(logits[3]))
  for wrong in (logits[:, :3], 1.0):
    with pytest.raises(ValueError, match=r"logits must have the shape \[..., 4\]: got "):
      calibrate(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_selection_and_a_calibrator_of_any_number_of_classes(kind):
  chosen = calibrators.select(*synthetic(60, 4), ["temperature_scaling"])
  calibrate = _served(chosen, kind)
  for classes in (2, 7):
    logits = synthetic(5, classes)[0]
    np.testing.assert_allclose(calibrate(logits), np.exp(chosen.calibrator.apply(chosen.params, logits)), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_apply_of_ones_own_may_take_parts_of_arrays(kind):
  def apply(params, logits):
    parts = jnp.concatenate([(2 * logits)[:, 1:], -logits[:, :1] ** 2], axis=1)
    flags = [compare(logits, -1.0) for compare in (jnp.less, jnp.less_equal, jnp.greater, jnp.equal, jnp.not_equal)]
    at_ties = sum(flag.astype(logits.dtype) / 2.0**i for i, flag in enumerate(flags))
    return jnp.exp((params["w"] + 1)[:, 1:]) * parts + params["w"][0, 2] - at_ties

  fitted = _own(apply, {"w": jnp.arange(4.0)[None] / 4})
  logits = -synthetic(5, 3)[0] ** 2
  logits[0] = -1
  np.testing.assert_allclose(_served(fitted, kind, num_classes=3)(logits), np.exp(fitted(logits)), rtol=1e-5)


def test_names_of_params_are_no_code():
  params = {'x"""\nimport os': jnp.ones((1, 3)), "logits": {"a": jnp.full((1, 3), jnp.nan)}, "é": jnp.array(True),
            "X_IMPORT_OS": jnp.array(2)}
  fitted = _own(lambda params, z: jnp.where(params["é"], z * params['x"""\nimport os'] * params["X_IMPORT_OS"],
                                            params["logits"]["a"]), params)
  logits = -synthetic(5, 3)[0] ** 2
  np.testing.assert_allclose(_served(fitted, "numpy")(logits), np.exp(2 * logits), rtol=1e-6)


def test_mistakes_are_named(monkeypatch):
  by_class = _own(lambda params, z: jnp.stack([z[..., i] for i in range(z.shape[-1])], axis=-1))
  logits = -synthetic(5, 3)[0] ** 2
  np.testing.assert_allclose(_served(by_class, "numpy", num_classes=3)(logits), np.exp(logits), rtol=1e-6)
  for fitted, options, error, match in (
      (calibrators.identity(), {"kind": "numpy"}, TypeError, "fitted must be a fitted calibrator.* got Calibrator"),
      (by_class, {"kind": "torch"}, ValueError, "kind must be one of"),
      (by_class, {"kind": "numpy"}, ValueError, "num_classes must be the number of classes of the fit"),
      (_own(lambda params, z: jax.lax.cumsum(z, 1)), {"kind": "numpy"}, ValueError, "JAX's operation cumsum")):
    with pytest.raises(error, match=match):
      calibrators.export(fitted, **options)
  monkeypatch.setitem(sys.modules, "onnx", None)
  with pytest.raises(ImportError, match=r"onnx must be installed: pip install 'calib-jax\[onnx\]'"):
    calibrators.export(by_class, "onnx", num_classes=3)
