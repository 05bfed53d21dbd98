"""Calibrators as values and on disk: params and how they were made come back, and files hold no code."""

import dataclasses
import json
import pickle

import jax
import numpy as np
import pytest

from calib_jax import calibrators, training
from calib_jax.calibrators import param_tables
from calib_jax.calibrators.storage import described, remade
from tests.calibrators.data import CASES, SHAPE, grouped, made, synthetic


@pytest.mark.parametrize("name", [
  pytest.param(name, marks=pytest.mark.xdist_group(f"fit {name}")) for name in (
    "identity", "temperature_scaling", "parameterized_temperature_scaling", "isotonic", "meta_calibration",
    "label_shift", "probability_floor")])
def test_params_come_back_from_disk(name, tmp_path):
  """Of scalars, matrices, and dictionaries of them; made on the host or not; of a base, which may have no params."""
  options = {"base": "identity"} if name == "label_shift" else CASES[name]
  calibrator, (logits, labels) = calibrators.get(name, **options), synthetic(*SHAPE)
  params = made(name, **options).fit(logits, labels, where=np.ones(len(labels), bool))
  calibrators.save(tmp_path / "params.npz", params, calibrator)
  restored = calibrators.load(tmp_path / "params.npz")
  assert restored.calibrator == calibrator
  calibrators.save(tmp_path / "params.npz", params)
  copies = [restored.params, calibrators.load(tmp_path / "params.npz")]
  if name in ("parameterized_temperature_scaling", "isotonic"):
    keeper = training.Checkpoints(tmp_path / "orbax")
    keeper.save(1, params)
    copies.append(keeper.restore(lambda step: params)[1])
    keeper.close()
  for copy in copies:
    assert jax.tree.structure(copy) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(copy), jax.tree.leaves(params), strict=True):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype
  if name == "isotonic":  # The same function, because a compiled one may round a score to the other side of a step.
    np.testing.assert_array_equal(restored.apply(logits), calibrator.apply(params, logits))


def test_a_calibrator_is_a_value():
  """Equal calls make equal calibrators, which are made by their repr; functions of one's own are compared as such."""
  network = calibrators.parameterized_temperature_scaling(hidden=3)
  calls = [*CASES.items(), ("classwise_loss_scaling", {"base": network, "normalization": "minmax"})]
  for name, options in calls:
    calibrator = calibrators.get(name, **options)
    assert calibrator == calibrators.get(name, **options) and hash(calibrator) == hash(calibrators.get(name, **options))
    assert eval(repr(calibrator), vars(calibrators) | calibrators.CALIBRATORS) == calibrator and calibrator.name == name
    assert pickle.loads(pickle.dumps(calibrator)) == calibrator == remade(json.loads(json.dumps(described(calibrator))))
  assert len({calibrators.get(name, **options) for name, options in calls}) == len(calls)
  assert calibrators.classwise_loss_scaling("parameterized_temperature_scaling", hidden=3).options["base"] == network
  own = [calibrators.Calibrator(calibrators.identity().fit, apply) for apply in (np.negative, np.positive)]
  assert own[0].name == "" and own[0] != own[1] and own[0] == dataclasses.replace(own[0])
  assert calibrators.platt() != "platt" and repr(own[0]).startswith("Calibrator(<function")
  with pytest.raises(dataclasses.FrozenInstanceError):
    own[0].name = "platt"


@pytest.mark.parametrize("name", grouped(CASES))
def test_params_that_no_fit_gives_are_refused(name, tmp_path):
  """What a fit gives is read again; without any one of its params, or with one of another shape or value, it is not."""
  calibrator, (logits, labels) = calibrators.get(name, **CASES[name]), synthetic(*SHAPE)
  params = made(name, **CASES[name]).fit(logits, labels, where=np.ones(len(labels), bool))
  path = tmp_path / "c.npz"
  calibrators.save(path, calibrators.Fitted(calibrator, params, SHAPE[1], tuple("abcdefghij")))
  assert calibrators.load(path).classes == tuple("abcdefghij")
  with np.load(path) as arrays:
    arrays = dict(arrays)
  learned = [key for key in arrays if key.split("/")[-1] not in (*param_tables.REPORTS, "calibrator.json", "")]
  assert bool(learned) == bool(jax.tree.leaves(params))
  for key in learned:
    wrong = {"without": None, "of another kind": arrays[key].astype(np.int32), "text": np.array("x"),
             "of more axes": arrays[key][None], "not a number": np.where(True, np.nan, arrays[key]).astype(np.float32)}
    if arrays[key].ndim and "layer" not in key:
      wrong["longer"] = np.concatenate([arrays[key]] * 3)
    if not arrays[key].size:  # Of nothing, all kinds are alike.
      wrong = {name: wrong[name] for name in ("without", "text", "of more axes")}
    for value in wrong.values():
      np.savez(path, **{k: x for k, x in arrays.items() if k != key}, **({} if value is None else {key: value}))
      with pytest.raises(ValueError, match=rf"c.npz.* {key}|c.npz.*layer" if value is None else "c.npz"):
        calibrators.load(path)


@pytest.mark.parametrize(("name", "params", "match"), [
  ("temperature_scaling", {"temperature": -2.0}, r"must be in \(0, inf\), and is -2"),
  ("isotonic", {"x": [[0.5, 0.1, 0.9]], "y": [[0.2, 0.3, 0.4]]}, "gives its x, because its numbers must not fall"),
  ("isotonic", {"x": [[0.1, 0.5, 0.9]], "y": [[2.0, 3, 50]]}, r"must be in \[0, 1\], and is 2"),
  ("isotonic", {"x": [[0.1, 0.5, 0.9]], "y": [[0.1, 0.2]]}, r"its shape \(1, 2\) must be \[C, B\], where B is 3"),
  ("ensemble_temperature_scaling", {"temperature": 1.0, "weights": [0.5, 0.4, 0.4]}, "must sum to 1"),
  ("vector_scaling", {"scale": [1.0, 1.0], "bias": [0.0, 0.0, 0.0]}, "where K is 2"),
  ("temperature_scaling", {"temperature": 2.0, "bias": [1.0, 1.0]}, None),
  ("temperature_scaling", {"temperature": 2.0, "x": 1.0}, "holds x, which temperature_scaling does not have")])
def test_ranges_and_sizes_of_params_are_checked(name, params, match, tmp_path):
  calibrators.save(tmp_path / "c.npz", {key: np.array(x, np.float32) for key, x in params.items()},
                   calibrators.get(name))
  with pytest.raises(ValueError, match=match or "holds bias, which"):
    calibrators.load(tmp_path / "c.npz")


def test_names_of_classes_are_kept_and_compared(tmp_path):
  logits, labels = synthetic(*SHAPE)
  names = [f"é {k}" for k in range(10)]
  fitted = calibrators.vector_scaling().fitted(logits, labels, classes=names)
  calibrators.save(tmp_path / "c.npz", fitted)
  loaded = calibrators.load(tmp_path / "c.npz")
  assert loaded.classes == fitted.classes == tuple(names) and loaded.num_classes == 10
  assert pickle.loads(pickle.dumps(loaded)).classes == loaded.classes
  with pytest.raises(ValueError, match="classes must be 10 different names"):
    calibrators.vector_scaling().fitted(logits, labels, classes=[*names[:9], names[0]])
  with pytest.raises(ValueError, match="vector_scaling was fitted to 10 classes, and the logits have 4"):
    fitted(logits[:, :4])
  with pytest.raises(ValueError, match="params of vector_scaling were fitted to another number of classes .* have, 4"):
    fitted.calibrator.apply(fitted.params, np.asarray(logits)[:, :4])
  for about in ({"classes": ["a", "a"]}, {"classes": "ab"}, {"num_classes": 0}, {"num_classes": 3, "classes": ["a"]}):
    made_by = json.dumps({"name": "temperature_scaling", "options": {}} | about).encode()
    np.savez(tmp_path / "x.npz", temperature=np.ones(()), **{"calibrator.json": np.frombuffer(made_by, np.uint8)})
    with pytest.raises(ValueError, match="does not describe a calibrator"):
      calibrators.load(tmp_path / "x.npz")
  module = {}
  exec(calibrators.export(loaded, "numpy"), module)
  order = np.random.default_rng(0).permutation(10)
  np.testing.assert_allclose(module["calibrate"](logits[:, order], classes=[names[k] for k in order]),
                             module["calibrate"](logits)[:, order], rtol=1e-6)
  assert module["CLASSES"] == tuple(names)
  with pytest.raises(ValueError, match="classes must have the names"):
    module["calibrate"](logits, classes=["x", *names[1:]])


def test_a_calibrator_that_is_called_says_how_it_is_fitted():
  with pytest.raises(TypeError, match=r"not fitted yet: write fitted = calibrator.fitted\(logits, labels\)"):
    calibrators.temperature_scaling()(np.zeros((1, 2)))


def test_params_files_hold_no_code(tmp_path):
  np.savez(tmp_path / "bad.npz", temperature=np.array([{"a": 1}], dtype=object))
  with pytest.raises(ValueError, match="holds Python objects, which are not read"):
    calibrators.load(tmp_path / "bad.npz")
  with pytest.raises(ValueError, match="without '/'"):
    calibrators.save(tmp_path / "x.npz", {"a/b": np.zeros(1)})


@pytest.mark.parametrize("names", [("logits", "labels"), ("probs",), ("train_images", "train_labels"), ("y_true", "x")])
def test_a_file_of_predictions_or_data_is_no_calibrator(names, tmp_path):
  np.savez(tmp_path / "test.npz", **{name: np.ones((2, 2)) for name in names})
  with pytest.raises(ValueError, match=f"test.npz must hold a calibrator, .* holds the arrays {', '.join(names)}: "):
    calibrators.load(tmp_path / "test.npz")


@pytest.mark.parametrize(("described_by", "match"), [
  ({"name": "temprature_scaling", "options": {}}, "Did you mean 'temperature_scaling'"),
  ({"name": "temperature_scaling", "options": {"objectiv": "nll"}}, "does not describe a calibrator"),
  ({"options": {}}, "does not describe a calibrator"), ([], "does not describe a calibrator")])
def test_a_file_that_describes_no_calibrator_is_refused(described_by, match, tmp_path):
  made = np.frombuffer(json.dumps(described_by).encode(), np.uint8)
  np.savez(tmp_path / "bad.npz", temperature=np.ones(()), **{"calibrator.json": made})
  with pytest.raises(ValueError, match=match):
    calibrators.load(tmp_path / "bad.npz")


def test_numbers_of_params_are_of_either_byte_order_and_at_most_64_bits(tmp_path):
  np.savez(tmp_path / "x.npz", **{"a/b": np.array([1.5, 2], ">f8"), "c": np.array(3, ">i4")})
  actual = calibrators.load(tmp_path / "x.npz")
  assert actual["a"]["b"].tolist() == [1.5, 2] and actual["c"].tolist() == 3
  for name, value, match in (("x", np.ones(2, np.longdouble), "numbers of at most 64 bits"),
                             ("a/" * 20 + "b", np.ones(2), "more than 8 levels"), ("a/b/c", np.ones(2), "both an"),
                             ("a", np.ones(2), "both an array")):
    np.savez(tmp_path / "x.npz", **{"a/b": np.ones(2), name: value})
    with pytest.raises(ValueError, match=match):
      calibrators.load(tmp_path / "x.npz")
  for text in (b"[" * 100_000, b'{"name": "temperature_scaling", "name": "identity", "options": {}}', b"\xff"):
    np.savez(tmp_path / "x.npz", temperature=np.ones(()), **{"calibrator.json": np.frombuffer(text, np.uint8)})
    with pytest.raises(ValueError, match="does not describe a calibrator"):
      calibrators.load(tmp_path / "x.npz")


def test_calibrators_that_a_file_cannot_hold_are_refused(tmp_path):
  for calibrator in (calibrators.temperature_scaling(lambda logits, labels, **_: 0.0),
                     calibrators.Calibrator(calibrators.identity().fit, np.negative)):
    with pytest.raises(ValueError, match="save the params alone|save the params"):
      calibrators.save(tmp_path / "x.npz", {}, calibrator)
