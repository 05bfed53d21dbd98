"""Data sets in the format of TensorFlow Datasets, written by TFDS itself: they are read, and networks train on them."""

import json

import numpy as np
import pytest

from tests.programs import python

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tfds")]  # One worker writes them all, in one process.
NAMES = ("cifar10", "cifar100", "svhn_cropped", "fashion_mnist", "cifar10_corrupted/frosted_glass_blur_2",
         "imagenet2012")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """The directory of the data sets."""
  folder = tmp_path_factory.mktemp("tfds")
  written = python("tests/write_tfds.py", folder, *NAMES, tmp_path=folder, blocked=("matplotlib",))
  assert written.returncode == 0, written.stderr
  return folder


READ = """
import json, sys
from calib_jax import data
for name, options in json.loads(sys.argv[2]):
  splits = data.load(name, seed=0, validation_fraction=0.1, dir=sys.argv[1], **options)
  print(json.dumps([splits.num_classes, [part.images.shape for part in splits[:3]],
                    float(splits.test.images.mean()), splits.test.labels.tolist()]))
"""


def test_named_sets_are_read(prepared, tmp_path):
  asked = [(name, {}) for name in NAMES[:4]] + [("cifar10_corrupted", {"corruption": "glass_blur", "severity": 2}),
                                               ("cifar10", {"corruption": "brightness", "severity": 5})]
  done = python("-c", READ, prepared, json.dumps(asked), tmp_path=tmp_path, blocked=("matplotlib",))
  assert done.returncode == 0, done.stderr
  result = [json.loads(line) for line in done.stdout.splitlines()]
  assert [row[0] for row in result] == [10, 100, 10, 10, 10, 10]
  for row, channels, side in zip(result, (3, 3, 3, 1, 3, 3), (32, 32, 32, 28, 32, 32), strict=True):
    assert row[1] == [[180, side, side, channels], [20, side, side, channels], [50, side, side, channels]]
    assert sorted(row[3]) == sorted(i % row[0] for i in range(50))
  assert result[5][2] > result[0][2] + 50


WORKERS = """
import sys
from calib_jax import data
from calib_jax._system import errors, process
if __name__ == "__main__":
  process.prepare()
  for workers in (0, 2):
    splits = data.load("imagenet2012", seed=0, validation_fraction=0.1, dir=sys.argv[1], image_size=16,
                       num_workers=workers)
    batches = data.training_batches(splits.train, 2, batch_size=8, num_devices=1, seed=0)
    print(sum(int(next(batches)["image"].astype(int).sum()) for _ in range(3)))
    batches.close()
  try:
    data.load("imagenet2012_lt", seed=0, validation_fraction=0.1, dir=sys.argv[1])
  except errors.UserError as error:
    print(error)
"""


def test_imagenet_is_read_from_array_records_by_threads_and_processes_and_trains(prepared, tmp_path):
  config = "--config=configs/soft_calibration.py:imagenet2012.resnet50"
  absent = python("main.py", config, f"--workdir={tmp_path / 'run'}",
                  f"--config.data.dir={tmp_path}", tmp_path=tmp_path, blocked=("matplotlib",))
  assert absent.returncode == 2 and absent.stderr.strip().count("\n") == 0
  assert "is not prepared in" in absent.stderr and "tfds build imagenet2012 --file_format=array_record" in absent.stderr
  (tmp_path / "workers.py").write_text(WORKERS)
  done = python(tmp_path / "workers.py", prepared, tmp_path=tmp_path, blocked=("matplotlib",))
  assert done.returncode == 0, done.stderr
  threads, processes, thinned = done.stdout.splitlines()
  assert threads == processes and int(threads) > 0
  # The labels were read: one of each of 200 of the 1,000 classes, where the long tail asks for a tenth and more of one.
  assert thinned == (
      "data.imbalance_ratio 0.1 would take 0 of the 1 examples of class 1: "
      "choose a ratio that takes at least one and at most all of them.")
  run = python("main.py", config, f"--workdir={tmp_path / 'run'}",
               f"--config.data.dir={prepared}", "--config.data.image_size=32", "--config.model.blocks=(1, 1)",
               "--config.training.num_steps=2", "--config.training.batch_size=8", "--config.num_seeds=1",
               "--config.data.validation_fraction=0.1", "--config.evaluation.num_resamples=10",
               "--config.evaluation.calibrators={}", tmp_path=tmp_path, blocked=("matplotlib", "tensorboard"))
  assert run.returncode == 0, run.stderr
  saved = json.loads((tmp_path / "run" / "config.json").read_text())
  assert saved["data"]["image_size"] == 32
  arrays = np.load(tmp_path / "run" / "predictions" / "test_seed0.npz")
  assert arrays["logits"].shape == (50, 1000) and sorted(arrays["labels"]) == list(range(50))
