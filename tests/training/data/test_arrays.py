"""Tables, token ids and other arrays, from a file of one's own."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data, models, run
from calib_jax.training.engine.program import normalizer
from calib_jax.training.run import Run
from calib_jax.training.run.data import additional_sets
from calib_jax.training.seed_groups import shape_of

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.usefixtures("no_figures")]
RNG = np.random.default_rng(0)
LABELS = np.arange(240) % 3
TABLE = RNG.normal(size=(240, 4)) * [1, 5, 0, 100] + [0, 1000, 7, 0] + LABELS[:, None] * [2, 0, 0, 0]
TOKENS = np.concatenate([20 + LABELS[:, None], RNG.integers(1, 20, (240, 3)), np.zeros((240, 2), int)], 1)


def _file(tmp_path, **arrays):
  np.savez(tmp_path / "mine.npz", **arrays)
  return str(tmp_path / "mine.npz")


def _load(tmp_path, x=TABLE, labels=LABELS, **options):
  return data.load("arrays", seed=0, validation_fraction=0.25, path=_file(tmp_path, x=x, labels=labels), **options)


def _config(path, *overrides):
  return run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in (
    "data.name=arrays", f"data.path={path}", "num_seeds=1", "compare_with_cross_entropy=False",
    *([] if any("simple_cnn" in o for o in overrides) else ["model.hidden=(8,)"]),
    "training.batch_size=48", "training.num_epochs=8", "evaluation.num_resamples=20", *overrides)])


def test_the_columns_of_a_table_are_standardised_by_the_training_split(tmp_path):
  splits = _load(tmp_path)
  assert [part.images.shape for part in splits[:3]] == [(144, 4), (48, 4), (48, 4)]
  assert splits.train.images.dtype == np.float32
  expected = np.asarray(splits.train.images, np.float64)
  np.testing.assert_allclose(splits.mean, expected.mean(0), rtol=1e-6)
  np.testing.assert_allclose(splits.std, [*expected.std(0)[:2], 1, expected.std(0)[3]], rtol=1e-5)  # One is constant.
  rows = np.asarray(normalizer(shape_of(splits))(splits.train.images))
  np.testing.assert_allclose(rows.mean(0), 0, atol=1e-4)
  np.testing.assert_allclose(rows.std(0), [1, 1, 0, 1], atol=1e-4)
  plain = _load(tmp_path, standardize=False)
  assert (plain.mean == 0).all() and (plain.std == 1).all()


def test_two_lists_of_names_that_differ_are_refused(tmp_path):
  names = np.array(["cat", "dog", "owl"])
  path = _file(tmp_path, x=TABLE, labels=LABELS, classes=names, class_names=names[::-1])
  with pytest.raises(UserError, match="holds class_names and classes, which differ: delete one of them"):
    data.load("arrays", path=path, seed=0, validation_fraction=0.25)


@pytest.mark.parametrize("name", ["classes", "class_names"])
def test_names_of_classes_are_read(name, tmp_path):
  x, options = {"x": TABLE, "images": np.zeros((240, 4, 4), np.uint8)}, {"seed": 0, "validation_fraction": 0.25}
  for source, key in (("arrays", "x"), ("npz", "images")):
    for names in (["cat", "dog", "owl"], [7, 8, 9]):
      path = _file(tmp_path, **{key: x[key], "labels": LABELS, name: np.array(names)})
      assert data.load(source, path=path, **options).classes == tuple(map(str, names))
    for wrong in (["cat", "dog"], ["cat", "dog", "dog"]):
      path = _file(tmp_path, **{key: x[key], "labels": LABELS, name: np.array(wrong)})
      with pytest.raises(UserError, match=f"{name} must be 3 different names, one a class in the order of the labels"):
        data.load(source, path=path, **options)


@pytest.mark.parametrize(("x", "dtype", "shape"), [
  (TABLE.astype(np.float16), "float32", (4,)), (TABLE[:, 0], "float32", (1,)), (TABLE > 0, "float32", (4,)),
  (TOKENS, "int32", (6,)), (TOKENS.astype(np.uint8), "int32", (6,)), (TABLE.reshape(240, 2, 2), "float32", (2, 2))])
def test_any_shape_and_type_of_numbers_is_read(x, dtype, shape, tmp_path):
  splits = _load(tmp_path, x)
  assert splits.train.images.dtype == dtype and splits.train.images.shape[1:] == shape
  if dtype == "int32":
    assert (splits.mean == 0).all() and (splits.std == 1).all()
    everything = np.concatenate([part.images for part in splits[:3]])
    np.testing.assert_array_equal(np.sort(everything, 0), np.sort(x, 0))


@pytest.mark.parametrize(("arrays", "message"), [
  ({"x": TABLE.astype(str), "labels": LABELS}, "x must be numbers of shape"),
  ({"x": TABLE, "labels": LABELS[:9]}, r"labels must be integers of shape \[240\], one for each image or row"),
  ({"x": np.where(np.arange(240)[:, None] == 17, np.nan, TABLE), "labels": LABELS},
   r"1 of the 240 rows of x are not finite; the first is row 17, counted from 0: \[nan, .*Fill in"),
  ({"x": TABLE * 1e39, "labels": LABELS}, "rows of x are not finite"),
  ({"x": TOKENS + 2**31, "labels": LABELS}, "must fit in 32 bits"),
  ({"images": TABLE, "labels": LABELS}, r"must hold x and labels, or x_train, labels_train, x_test, labels_test, and"),
  ({"x_train": TABLE, "labels_train": LABELS, "x_test": TOKENS, "labels_test": LABELS}, "differ in shape or type"),
])
def test_what_is_wrong_is_said(arrays, message, tmp_path):
  with pytest.raises(UserError, match=message):
    data.load("arrays", seed=0, validation_fraction=0.25, path=_file(tmp_path, **arrays))


def test_the_mlp_averages_the_embeddings_of_tokens():
  model = models.get("mlp", num_classes=3, hidden=(5,), num_tokens=30)
  tokens = jnp.array([[4, 7, 0, 0], [4, 4, 7, 7], [0, 0, 0, 0]])
  variables = jax.jit(model.init)(jax.random.key(0), tokens)
  logits, features = jax.jit(lambda: model.apply(variables, tokens, return_features=True))()
  params = jax.tree.map(np.asarray, variables["params"])
  mean = params["stem_tokens"]["embedding"][[4, 7]].mean(0)
  dense = params["group1_dense"]
  expected = np.maximum(mean @ dense["kernel"] + dense["bias"], 0)
  np.testing.assert_allclose(features[:2], np.stack([expected, expected]), rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(features[2], np.maximum(dense["bias"], 0))  # A row of padding alone.
  np.testing.assert_allclose(logits[0], expected @ params["head"]["kernel"] + params["head"]["bias"], rtol=1e-4,
                             atol=1e-6)
  with pytest.raises(ValueError, match=r"num_tokens is for token ids.*got float32 of shape \(1, 8\)"):
    model.init(jax.random.key(0), jnp.zeros((1, 8)))


@pytest.mark.parametrize(("x", "overrides"), [(TABLE, ()), pytest.param(
  TOKENS, ("model.num_tokens=30",), marks=pytest.mark.slow)])
def test_a_run_learns_is_loaded_and_predicts_the_same_bits(x, overrides, tmp_path):
  path = _file(tmp_path, x=x, labels=LABELS)
  run.execute(_config(path, *overrides), tmp_path / "run")
  results = json.loads((tmp_path / "run/results.json").read_text())["results"]["test"]
  assert next(iter(results.values()))["none"]["accuracy"]["estimate"] > 0.6
  loaded = Run.load(tmp_path / "run")
  test = loaded.splits().test.images
  np.testing.assert_array_equal(loaded.predict(test), loaded.saved("test")[0].logits)
  assert loaded.features(test[:5]).shape == (5, 8)
  with pytest.raises(UserError, match=rf"images must be {test.dtype} of shape \[N, {test.shape[1]}\]"):
    loaded.predict(np.zeros((3, 8, 8, 1), np.uint8))
  np.savez(tmp_path / "noise.npz", x=np.zeros((9, 2)), labels=np.arange(9) % 3)
  (_, load), = additional_sets(_config(path, *overrides, f"evaluation.ood=('{tmp_path}/noise.npz',)"), 0)
  with pytest.raises(UserError, match="noise.npz|mine.npz"):  # Out of distribution needs the same shape.
    load()


@pytest.mark.parametrize(("x", "overrides", "message"), [
  (TABLE, ("augmentation.name=crop_flip",), "augmentation.name is for images, which arrays does not hold: set it to"),
  (TABLE, ("evaluation.corruptions=('fog',)",), "evaluation.corruptions is for images"),
  (TABLE, ("model={'name': 'simple_cnn'}",), r"model: simple_cnn cannot take float32 of shape \[N, 4\]"),
  (TABLE, ("model.num_tokens=5",), r"num_tokens is for token ids, integers of shape \[N, T\]: got float32"),
  (TOKENS, ("model.num_tokens=22",), "num_tokens must be above every token id, which go from 0 to 22 in arrays"),
  (TABLE, ("data.corruption=fog",), "data.corruption: arrays holds no images"),
])
def test_what_is_for_images_is_refused_before_training(x, overrides, message, tmp_path):
  with pytest.raises(UserError, match=message):
    config = _config(_file(tmp_path, x=x, labels=LABELS), *overrides)
    run_config.check(config, 8)
    run.execute(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()
