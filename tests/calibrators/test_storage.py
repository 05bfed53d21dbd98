"""Calibrators as values and on disk: params and how they were made come back, and files hold no code."""

import dataclasses
import json
import pickle

import jax
import numpy as np
import pytest

from calib_jax import calibrators, training
from calib_jax.calibrators.storage import described, remade
from tests.calibrators.data import CASES, SHAPE, made, synthetic


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
    assert eval(repr(calibrator), vars(calibrators)) == calibrator and calibrator.name == name
    assert pickle.loads(pickle.dumps(calibrator)) == calibrator == remade(json.loads(json.dumps(described(calibrator))))
  assert len({calibrators.get(name, **options) for name, options in calls}) == len(calls)
  assert calibrators.classwise_loss_scaling("parameterized_temperature_scaling", hidden=3).options["base"] == network
  own = [calibrators.Calibrator(calibrators.identity().fit, apply) for apply in (np.negative, np.positive)]
  assert own[0].name == "" and own[0] != own[1] and own[0] == dataclasses.replace(own[0])
  assert calibrators.platt() != "platt" and repr(own[0]).startswith("Calibrator(<function")
  with pytest.raises(dataclasses.FrozenInstanceError):
    own[0].name = "platt"


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
