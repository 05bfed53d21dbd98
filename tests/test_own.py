"""The example of a user's own five parts runs as it is copied, and what such parts lack is said in a sentence."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import run
from calib_jax.training.run import Run, directory
from tests.programs import ROOT, never

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.usefixtures("no_figures")]
SMALL = ("training.num_epochs=3", "evaluation.num_resamples=20", "data.num_examples=400")


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A copy of the two files, in another directory than the one in which commands run."""
  run.data._load.cache_clear()
  shutil.copytree(ROOT / "examples/own", tmp_path / "own")
  # Other tests leave the directories of their configs there.
  monkeypatch.setattr(sys, "path", [path for path in sys.path if "pytest-of" not in path])
  monkeypatch.delitem(sys.modules, "mine", raising=False)
  # The tests forbid broadcasting between arrays of different ranks, and users do not.
  with jax.numpy_rank_promotion("allow"):
    yield tmp_path / "own"
  sys.modules.pop("mine", None)


def _config(folder, *overrides):
  config = run_config.load(str(folder / "config.py"), [f"--config.{o}" for o in (*SMALL, *overrides)])
  run_config.check(config, 8)
  return config


@pytest.mark.parametrize(("model", "epochs"), [
  ("mine:Network", 3), pytest.param("nnx_network:FromNNX", 15, marks=pytest.mark.slow)])
def test_the_example_trains_calibrates_and_is_loaded(model, epochs, folder, tmp_path):
  config = _config(folder, "evaluation.calibrators.Mine.strength=0.5", f"model.name={model}",
                   f"training.num_epochs={epochs}")
  run.execute(config, tmp_path / "run")
  assert directory.write_config(config, tmp_path / "run") is None  # The same command continues it without a flag.
  written = json.loads((tmp_path / "run/results.json").read_text())
  rows = written["results"]["test"]["mine:bounded, mine:Cosine head"]
  assert list(rows)[:3] == ["none", "Mine", "TS"] and rows["none"]["accuracy"]["estimate"] > 0.5
  loaded = Run.load(tmp_path / "run", own_code=True)
  test = loaded.splits().test
  np.testing.assert_array_equal(loaded.predict(test.images), loaded.saved("test")[0].logits)
  params, = loaded.calibrators()["Mine"][1]
  assert params["bias"].shape == (3,) and np.isfinite(params["bias"]).all()
  with pytest.raises(UserError, match="own_code=True"):
    Run.load(tmp_path / "run")


@pytest.mark.parametrize(("old", "new", "message"), [
  ("def __call__(self, x, *, train=False, mask=None):", "def __call__(self, x, *, train=False):\n    mask = None",
   r"Network must be called as \(self, x, \*, train=False, mask=None\), and takes no mask: .*only fill up a batch"),
  ("def __call__(self, x, *, train=False, mask=None):", "def __call__(self, x):\n    mask, train = None, False",
   "takes no train and mask: train says whether"),
  ("return models.Features(x.astype(jnp.float32))", "return x",
   r"Network must return calib_jax.training.models.Features\(vector\) .*: got \w+ of shape \(1, 32\)"),
  ("return models.Features(x.astype(jnp.float32))", "return models.Features(x.sum())", r"got a vector of shape \(\)"),
  ("class Network(models.Backbone)", "class Network(nn.Module)", "mine:Network must be a subclass of calib_jax"),
  ("def __call__(self, features, *, train=False, mask=None):", "def __call__(self, features):",
   r"Cosine must be called as \(self, features, \*, train=False, mask=None\), and takes no train and mask"),
  ("unit(x, -1) @ unit(classes, 0)", "unit(x, -1)", r"mine:Cosine must return logits of shape \[N, 3\]: got \(1, 32\)"),
  ("def bounded(logits, labels, *", "def bounded(logits, *", "loss: bounded"),
  ("return data.Pool(", "return dict(", "mine:rings must return a calib_jax.training.data.Pool, not dict"),
])
def test_what_a_part_lacks_is_said_in_a_sentence_before_training(old, new, message, folder, tmp_path):
  text = (folder / "mine.py").read_text()
  assert old in text
  (folder / "mine.py").write_text(text.replace(old, new, 1))
  with pytest.raises(UserError, match=message) as error:
    run.execute(_config(folder), tmp_path / "run", hooks=[never])
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run").exists()

