"""Published corrupted images: read by their folder and severity, mapped, and refused in one sentence."""

import os
import re

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data
from calib_jax.training.data.sources import tfds
from calib_jax.training.run.data import additional_sets
from tests.training.small import digits

RNG = np.random.default_rng(0)
EACH = 6  # Images of one severity.


def _folder(parent, name="CIFAR-100-C", shape=(4, 4, 3), num_classes=5, corruptions=data.CORRUPTIONS):
  """Writes a folder like the published ones; returns the folder and its images by corruption."""
  folder = parent / name
  folder.mkdir()
  images = {c: RNG.integers(0, 256, (5 * EACH, *shape), dtype=np.uint8) for c in corruptions}
  for corruption, array in images.items():
    np.save(folder / f"{corruption}.npy", array)
  np.save(folder / "labels.npy", np.tile(np.arange(EACH) % num_classes, 5))
  return folder, images


def test_a_severity_is_its_fifth_of_the_file_which_is_mapped(tmp_path):
  folder, images = _folder(tmp_path, corruptions=("fog",))
  np.save(folder / "labels.npy", np.arange(5 * EACH))  # Labels that say their place.
  for severity in (1, 3, 5):
    rows = slice((severity - 1) * EACH, severity * EACH)
    part = data.published(folder / "fog.npy", severity)
    np.testing.assert_array_equal(part.images, images["fog"][rows])
    np.testing.assert_array_equal(part.labels, np.arange(5 * EACH)[rows])
    assert isinstance(part.images, np.memmap) and part.labels.dtype == np.int32


@pytest.mark.parametrize(("images", "labels", "message"), [
  (None, np.arange(30), r"there is no file .*fog\.npy"),
  (np.zeros((30, 4, 4, 3), np.uint8), None, r"there is no file .*labels\.npy"),
  (np.zeros((31, 4, 4, 3), np.uint8), np.arange(31), r"5 severities in order: got \(31, 4, 4, 3\) and \(31,\)"),
  (np.zeros((30, 4, 4), np.uint8), np.arange(30), r"must hold images \[5 N, H, W, C\]"),
  (np.zeros((30, 4, 4, 3), np.uint8), np.arange(6), r"got \(30, 4, 4, 3\) and \(6,\)"),
  (np.zeros((30, 4, 4, 3), np.float32), np.arange(30), "images must be uint8"),
  (np.zeros((0, 4, 4, 3), np.uint8), np.arange(0), "must be at least one"),
  (np.zeros((30, 4, 4, 3), np.uint8), np.arange(30) - 29, "labels must be class numbers from 0"),
  (np.zeros((30, 4, 4, 3), np.uint8), np.array([{}] * 30), "holds Python objects, which are not read"),
])
def test_what_is_wrong_with_published_images_is_said(images, labels, message, tmp_path):
  for name, array in (("fog", images), ("labels", labels)):
    if array is not None:
      np.save(tmp_path / f"{name}.npy", array)
  with pytest.raises(UserError, match=message):
    data.published(tmp_path / "fog.npy", 1)


def test_a_file_that_claims_more_than_it_holds_is_refused(tmp_path):
  folder, _ = _folder(tmp_path, corruptions=("fog",))
  with open(folder / "fog.npy", "r+b") as file:
    file.truncate(file.seek(0, os.SEEK_END) - 1)
  with pytest.raises(UserError, match="its header claims"):
    data.published(folder / "fog.npy", 1)


def test_cifar_sets_are_tested_on_the_published_images(tmp_path, monkeypatch):
  asked = []

  def cifar(name, dir):
    asked.append((name, dir))
    train = data.Examples(RNG.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8), np.arange(40, dtype=np.int32) % 5)
    return data.Pool(train, train, 5)

  monkeypatch.setattr(tfds, "tfds", cifar)
  monkeypatch.setattr(tfds, "read", lambda name, dir, splits: asked.append(name) or ([cifar("", "").train], 5))
  options = {"seed": 0, "validation_fraction": 0.25, "dir": str(tmp_path), "severity": 4}
  with pytest.raises(UserError, match=r"needs the folder CIFAR-100-C in .*, which has none: unpack CIFAR-100-C\.tar"):
    data.load("cifar100_corrupted", corruption="fog", **options)
  data.load("cifar10_corrupted", corruption="glass_blur", **options)
  assert asked[:2] == [("cifar10", str(tmp_path)), "cifar10_corrupted/frosted_glass_blur_4"]
  for name, folder in (("cifar10_corrupted", "CIFAR-10-C"), ("cifar100_corrupted", "CIFAR-100-C")):
    _, images = _folder(tmp_path, folder, corruptions=("glass_blur",))
    test = data.load(name, corruption="glass_blur", **options).test
    np.testing.assert_array_equal(test.images, images["glass_blur"][3 * EACH:4 * EACH])
    with pytest.raises(UserError, match=f"data.corruption must name the corruption of {name}"):
      data.load(name, **options)
  assert asked[-1] == ("cifar100", str(tmp_path))


def test_a_folder_is_evaluated_whole_beside_computed_corruptions(tmp_path):
  folder, images = _folder(tmp_path, "Digits-C", (8, 8, 1))
  config = digits(f"evaluation.corruptions=('fog', '{folder}')", "evaluation.severities=(2, 5)")
  run_config.check(config, 1)
  sets = dict(additional_sets(config, 0))
  assert list(sets)[:4] == ["fog_2", "fog_5", "Digits-C_gaussian_noise_2", "Digits-C_gaussian_noise_5"]
  assert len(sets) == 2 + 2 * len(data.CORRUPTIONS)
  for name, rows in (("Digits-C_snow_2", slice(EACH, 2 * EACH)), ("Digits-C_snow_5", slice(4 * EACH, None))):
    examples, kind = sets[name]()
    np.testing.assert_array_equal(examples.images, images["snow"][rows])
    assert kind == "shifted"
  one = dict(additional_sets(digits(f"evaluation.corruptions=('{folder}/fog.npy',)", "evaluation.severities=(1,)"), 0))
  assert list(one) == ["Digits-C_fog_1"]


@pytest.mark.parametrize(("shape", "num_classes", "given"), [
  ((8, 8, 3), 5, "images (8, 8, 3) and labels up to 4"), ((8, 8, 1), 11, "images (8, 8, 1) and labels up to 10")])
def test_published_images_of_other_data_are_refused(shape, num_classes, given, tmp_path, monkeypatch):
  monkeypatch.setattr("tests.training.data.test_published.EACH", 12)
  folder, _ = _folder(tmp_path, "Digits-C", shape, num_classes, ("fog",))
  _, load = next(additional_sets(digits(f"evaluation.corruptions=('{folder}/fog.npy',)"), 0))
  with pytest.raises(UserError, match=re.escape(f"must hold images (8, 8, 1) of 10 classes, as the run's own data are: "
                                                f"got {given}")):
    load()


def test_an_unknown_corruption_and_two_sets_of_one_name_are_refused(tmp_path):
  with pytest.raises(UserError, match="config key evaluation.corruptions must be one of gaussian_noise"):
    run_config.check(digits("evaluation.corruptions=('fogg',)"), 1)
  with pytest.raises(UserError, match="two files would be called 'A_fog' in tables"):
    run_config.check(digits("evaluation.corruptions=('x/A', 'y/A/fog.npy')"), 1)
  with pytest.raises(UserError, match=r"would be called 'A_fog_1' in tables, which is the name of another"):
    run_config.check(digits("evaluation.corruptions=('x/A',)", "evaluation.ood=('A_fog_1.npz',)"), 1)
