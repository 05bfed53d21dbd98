"""Data sets in the format of TensorFlow Datasets, written by TFDS itself: they are read, and networks train on them."""

import json

import numpy as np
import pytest

from tests.programs import python

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tfds")]  # One worker writes them all, in one process.
NAMES = ("cifar10", "cifar100", "fashion_mnist", "cifar10_corrupted/frosted_glass_blur_2", "imagenet2012")
READ = """
import json, sys
from calib_jax.training import data
from calib_jax._system import errors, process

def load(name, folder=sys.argv[1], **options):
  return data.load(name, seed=0, validation_fraction=0.1, dir=folder, **options)

if __name__ == "__main__":
  process.prepare()
  for name, options in (("cifar10", {}), ("cifar100", {}), ("fashion_mnist", {}),
                        ("cifar10_corrupted", {"corruption": "glass_blur", "severity": 2}),
                        ("cifar10", {"corruption": "brightness", "severity": 5})):
    splits = load(name, **options)
    print(json.dumps([splits.num_classes, [part.images.shape for part in splits[:3]],
                      float(splits.test.images.mean()), splits.test.labels.tolist()]))
  for workers in (0, 2):
    splits = load("imagenet2012", image_size=16, num_workers=workers)
    batches = data.training_batches(splits.train, 2, batch_size=8, num_devices=1, seed=0)
    print(sum(int(next(batches)["image"].astype(int).sum()) for _ in range(3)))
    batches.close()
  for name, folder in (("imagenet2012", "/nowhere"), ("imagenet2012_lt", sys.argv[1])):
    try:
      load(name, folder)
    except errors.UserError as error:
      print(error)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """The directory of the data sets."""
  folder = tmp_path_factory.mktemp("tfds")
  written = python("tests/write_tfds.py", folder, *NAMES, tmp_path=folder, blocked=("matplotlib",))
  assert written.returncode == 0, written.stderr
  return folder


def test_named_sets_are_read_and_imagenet_by_threads_and_processes(prepared, tmp_path):
  (tmp_path / "read.py").write_text(READ)
  done = python(tmp_path / "read.py", prepared, tmp_path=tmp_path, blocked=("matplotlib",))
  assert done.returncode == 0, done.stderr
  *sets, threads, processes, absent, thinned = done.stdout.splitlines()
  sets = [json.loads(line) for line in sets]
  assert [row[0] for row in sets] == [10, 100, 10, 10, 10]
  for row, channels, side in zip(sets, (3, 3, 1, 3, 3), (32, 32, 28, 32, 32), strict=True):
    assert row[1] == [[180, side, side, channels], [20, side, side, channels], [50, side, side, channels]]
    assert sorted(row[3]) == sorted(i % row[0] for i in range(50))
  assert sets[4][2] > sets[0][2] + 50
  assert threads == processes and int(threads) > 0
  assert "is not prepared in" in absent and "tfds build imagenet2012 --file_format=array_record" in absent
  # The labels were read: one of each of 200 of the 1,000 classes, where the long tail asks for a tenth and more of one.
  assert thinned == (
      "data.imbalance_ratio 0.1 would take 0 of the 1 examples of class 1: "
      "choose a ratio that takes at least one and at most all of them.")


def test_a_network_trains_on_imagenet_in_array_records(prepared, tmp_path):
  run = python("main.py", "--config=configs/soft_calibration.py:imagenet2012.resnet50",
               f"--workdir={tmp_path / 'run'}", f"--config.data.dir={prepared}", "--config.data.image_size=32",
               "--config.model={'name': 'mlp', 'hidden': (4,)}", "--config.training.num_steps=2",
               "--config.training.batch_size=8", "--config.num_seeds=1", "--config.data.validation_fraction=0.1",
               "--config.evaluation.num_resamples=2", "--config.evaluation.calibrators={}", tmp_path=tmp_path,
               blocked=("matplotlib", "tensorboard"))
  assert run.returncode == 0, run.stderr
  saved = json.loads((tmp_path / "run" / "config.json").read_text())
  assert saved["data"]["image_size"] == 32
  arrays = np.load(tmp_path / "run" / "predictions" / "test_seed0.npz")
  assert arrays["logits"].shape == (50, 1000) and sorted(arrays["labels"]) == list(range(50))
