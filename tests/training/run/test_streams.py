"""A run on images that are read as a stream predicts every set that it lists."""

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax.training import run
from calib_jax.training.run import Run
from tests.training.small import digits

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.usefixtures("no_figures")]


def test_corruptions_and_training_images_of_a_stream_are_predicted(tmp_path):
  config = digits("data.name=tests.training.run.tiny_stream:images", "model.name=simple_cnn", "model.channels=(4, 4)",
                  "training.batch_size=16", "training.num_steps=2", "evaluation.num_resamples=20", "num_seeds=1",
                  "compare_with_cross_entropy=False", "evaluation.corruptions=('fog',)", "evaluation.severities=(1, 5)",
                  "evaluation.predict_train=True", "evaluation.save_features=True")
  run.execute(config, tmp_path / "run")
  loaded = Run.load(tmp_path / "run", own_code=True)
  test, fog, worse, train = (evaluation.load(tmp_path / f"run/predictions/{name}_seed0.npz")
                             for name in ("test", "fog_1", "fog_5", "train"))
  np.testing.assert_array_equal(fog.labels, test.labels)
  np.testing.assert_array_equal(test.labels, np.arange(16) % 3)
  assert fog.kind == worse.kind == "shifted" and train.kind == "in_distribution"
  assert len({part.logits.tobytes() for part in (test, fog, worse)}) == 3
  assert len(train.labels) == len(loaded.splits().train.index) == len(train.features)
  tables = loaded.evaluate({"again": {"name": "tests.training.run.tiny_stream:images", "validation_fraction": 0.25}})
  assert tables["again"]["none"]["accuracy"].value == pytest.approx(np.mean(test.logits.argmax(1) == test.labels))
