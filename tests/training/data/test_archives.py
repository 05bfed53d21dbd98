"""The published archives: the images and labels in them, what is prepared of them, and what is refused."""

import os
import sys
from unittest import mock
import zipfile

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax._system.files import read_npz
from calib_jax.training import data
from calib_jax.training.data import __main__ as command
from calib_jax.training.data import archives
from tests.training.data import archive_files

FILES = {name: archive.file for name, archive in archives.ARCHIVES.items()}


def _load(name, folder):
  """Loads a data set from a folder, whose archive counts as the published one."""
  archive = archives.ARCHIVES[name]
  if (file := folder / archive.file).is_file():
    archive = archive._replace(sha256=archives.sha256(file))
  with mock.patch.dict(archives.ARCHIVES, {name: archive}):
    return data.SOURCES[name](str(folder))


def test_cifar10_has_the_images_of_its_batches_in_their_order(tmp_path):
  arrays = archive_files.cifar10(tmp_path / FILES["cifar10"])
  pool = _load("cifar10", tmp_path)
  train = [arrays[f"data_batch_{i}"] for i in range(1, 6)]
  np.testing.assert_array_equal(pool.train.images, np.concatenate([images for images, _ in train]))
  np.testing.assert_array_equal(pool.train.labels, np.concatenate([labels for _, labels in train]))
  np.testing.assert_array_equal(pool.test.images, arrays["test_batch"][0])
  assert pool.num_classes == 10 and pool.classes[3] == "class 3" and pool.train.labels.dtype == np.int32


def test_cifar100_has_its_fine_labels(tmp_path):
  arrays = archive_files.cifar100(tmp_path / FILES["cifar100"])
  pool = _load("cifar100", tmp_path)
  for part, split in ((pool.train, "train"), (pool.test, "test")):
    np.testing.assert_array_equal(part.images, arrays[split][0])
    np.testing.assert_array_equal(part.labels, arrays[split][1])
  assert pool.num_classes == 100 and pool.classes[99] == "fine 99"


def test_tiny_imagenet_is_the_same_from_its_archive_and_unpacked(tmp_path):
  file, unpacked = tmp_path / FILES["tiny_imagenet"], tmp_path / "tiny-imagenet-200"
  archive_files.zipped(file, archive_files.tiny_imagenet_members())
  pool = _load("tiny_imagenet", tmp_path)
  assert pool.num_classes == 3 and pool.train.images.shape == (12, 64, 64, 3) and pool.test.labels.tolist() == [0, 1, 2]
  np.testing.assert_allclose(pool.train.images.mean((1, 2, 3)), [0, 1, 2, 3, 20, 21, 22, 23, 40, 41, 42, 43], atol=1)
  with zipfile.ZipFile(file) as archive:
    archive.extractall(tmp_path)
  file.unlink()
  for folder in (tmp_path, unpacked):
    again = _load("tiny_imagenet", folder)
    for part in ("train", "test"):
      for a, b in zip(getattr(pool, part), getattr(again, part), strict=True):
        np.testing.assert_array_equal(a, b)
  for name, message in (("train/n9/images/n9_2.JPEG", r"n9_2\.JPEG is a pipe or a device"),
                        ("val/val_annotations.txt", "needs the unpacked tiny-imagenet-200"),
                        ("wnids.txt", r"needs the unpacked .* unpack http://cs231n.*data.dir")):
    (unpacked / name).unlink()
    os.mkfifo(unpacked / name)
    with pytest.raises(UserError, match=message):
      _load("tiny_imagenet", tmp_path)


def _write(name, path):
  if name == "tiny_imagenet":
    archive_files.zipped(path, archive_files.tiny_imagenet_members())
  else:
    getattr(archive_files, name)(path)


@pytest.mark.parametrize("name", list(FILES))
def test_what_is_prepared_is_what_the_archive_holds(name, tmp_path, capsys):
  archive = tmp_path / FILES[name]
  _write(name, archive)
  before = _load(name, tmp_path)
  assert command.main(["prepare", str(archive)]) == 2
  message = capsys.readouterr().err
  digest = archives.sha256(archive)
  assert archives.ARCHIVES[name].sha256 in message and f"--sha256={digest}" in message and message.count("\n") == 1
  assert not (tmp_path / f"{name}.npz").exists()
  assert command.main(["prepare", str(archive), f"--sha256={digest.upper()}"]) == 0
  assert f"{len(before.train.labels)} training and {len(before.test.labels)} test" in capsys.readouterr().out
  archive.unlink()
  assert sorted(read_npz(tmp_path / f"{name}.npz")) == ["class_names", "test_images", "test_labels", "train_images",
                                                         "train_labels"]
  after = _load(name, tmp_path)
  assert after.classes == before.classes and after.num_classes == before.num_classes
  for part in ("train", "test"):
    for a, b in zip(getattr(before, part), getattr(after, part), strict=True):
      np.testing.assert_array_equal(a, b)
  splits = data.load("npz", seed=0, validation_fraction=0.25, path=str(tmp_path / f"{name}.npz"))
  assert len(splits.test.labels) == len(before.test.labels)


def _without(name):
  def change(members):
    del members[name]
  return change


def _replaced(name, content):
  def change(members):
    members[name] = content
  return change


def _batch(**fields):
  images = np.zeros((2, 3072), np.uint8)
  members = {"data": images, "labels": [0, 1], **fields}
  return _replaced("data_batch_2", archive_files.py2({name.encode(): value for name, value in members.items()}))


@pytest.mark.parametrize(("change", "message"), [
  (_without("data_batch_3"), r"it has no data_batch_3"), (_without("batches.meta"), "it has no batches.meta"),
  (_replaced("test_batch", b"cnumpy\nload\n(Vran\ntR."), "names 'numpy.load', which is not read because it could run"),
  (_replaced("test_batch", b"junk"), "test_batch is no pickle of arrays"),
  (_replaced("test_batch", archive_files.py2([1])), "test_batch holds no dict"),
  (_batch(data=np.zeros((2, 3071), np.uint8)), r"data_batch_2 has no data of uint8 \[N, 3072\]"),
  (_batch(data=np.zeros((2, 3072), np.int32)), "has no data of uint8"), (_batch(data=[1]), "has no data of uint8"),
  (_batch(labels=[0]), r"labels must be integers of shape \[2\]"), (_batch(labels=[0, -1]), "has no list of labels"),
  (_batch(labels=["a", "b"]), "has no list of labels"), (_batch(labels=np.array([0, 1])), "has no list of labels"),
  (_batch(labels=[0, 10]), "has the label 10, and names 10 classes"),
  (_replaced("batches.meta", archive_files.py2({b"label_names": 3})), "batches.meta has no list of label_names"),
])
def test_what_is_wrong_with_an_archive_of_cifar_is_said(change, message, tmp_path):
  members = archive_files.cifar10_members(archive_files.cifar_arrays())
  change(members)
  archive_files.tar(tmp_path / FILES["cifar10"], members)
  with pytest.raises(UserError, match=message):
    _load("cifar10", tmp_path)


@pytest.mark.parametrize("name", list(FILES))
def test_an_archive_that_is_not_the_published_one_is_refused(name, tmp_path):
  _write(name, tmp_path / FILES[name])
  with pytest.raises(UserError, match=rf"SHA-256 {archives.sha256(tmp_path / FILES[name])}, and the published archive"):
    data.SOURCES[name](str(tmp_path))


def test_damaged_archives_are_refused(tmp_path):
  path = tmp_path / FILES["cifar10"]
  archive_files.cifar10(path)
  whole = path.read_bytes()
  for content in (whole[:len(whole) // 2], b"", b"no archive"):
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as the archive of cifar10"):
      _load("cifar10", tmp_path)


@pytest.mark.parametrize(("change", "message"), [
  (_without("wnids.txt"), "wnids.txt"), (_replaced("wnids.txt", b"n9\nn9\n"), "a class twice"),
  (_replaced("wnids.txt", b"n9\n"), "cannot be read as the archive"),
  (_without("val/images/val_1.JPEG"), r"val_1\.JPEG"),
  (_replaced("train/n8/images/n8_0.JPEG", b"oh"), "record 4 is not a whole picture"),
  (_replaced("train/n8/images/n8_0.JPEG", bytes(2**20 + 1)), "has more than 1,048,576 bytes"),
  (_replaced("train/n8/images/n8_0.JPEG", archive_files.jpeg(np.zeros((8, 8, 3), np.uint8))), "8x8 where the first"),
])
def test_what_is_wrong_with_an_archive_of_tiny_imagenet_is_said(change, message, tmp_path):
  members = archive_files.tiny_imagenet_members()
  change(members)
  archive_files.zipped(tmp_path / FILES["tiny_imagenet"], members)
  with pytest.raises(UserError, match=message) as raised:
    _load("tiny_imagenet", tmp_path)
  assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("arguments", "message"), [
  (["cifar.tar.gz"], "must be called cifar-10-python.tar.gz, cifar-100-python.tar.gz, tiny-imagenet-200.zip"),
  (["cifar-10-python.tar.gz"], "there is no file"),
])
def test_a_mistake_of_prepare_is_one_sentence(arguments, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert command.main(["prepare", *arguments]) == 2
  error_message = capsys.readouterr().err
  assert message in error_message and error_message.count("\n") == 1


def test_nothing_is_left_where_the_file_cannot_be_written_whole(tmp_path, capsys):
  members = archive_files.tiny_imagenet_members()
  members["train/n8/images/n8_0.JPEG"] = b"oh"
  path = tmp_path / FILES["tiny_imagenet"]
  archive_files.zipped(path, members)
  assert command.main(["prepare", str(path), f"--sha256={archives.sha256(path)}"]) == 2
  assert "record 4 is not a whole picture" in capsys.readouterr().err
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_without_tensorflow_the_message_names_the_archive(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # Its import fails.
  with pytest.raises(UserError, match=r"installed: put cifar-100-python.tar.gz \(https://.*\) into /.* or name "
                                      r"the folder that holds it by --config.data.dir=DIR; or pip install 'calib-jax"):
    _load("cifar100", tmp_path)
  with pytest.raises(UserError, match=r"pip install 'calib-jax\[data\]'\.$"):
    data.SOURCES["mnist"](str(tmp_path))
