"""Files that are damaged, lie or are no files: read as they are, or refused in a sentence, and nothing is executed."""

import json
import pickle

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import UserError
from calib_jax.training import data, models, run
from calib_jax.training.data import archives
from calib_jax.training.run import lock, manifest
from tests.hostile import judge
from tests.hostile.judge import attacked, read
from tests.training.data import archive_files

MADE, FITTED = {"name": "temperature_scaling", "options": {"objective": "nll"}}, {"temperature": np.float32(1.5)}
DESCRIPTIONS = [MADE | change for change in (
  {"name": "os:system"}, {"name": "builtins:exec"}, {"name": "__class__"}, {"options": {"command": "touch canary"}},
  {"options": []}, {"options": {"objective": 1}}, {"name": 1})]


def described(text):
  return judge.zipped(judge.members(("calibrator.json", np.frombuffer(text, np.uint8)), **FITTED))


@attacked(judge.archives(**FITTED, layer=np.ones(3)), [
  *(described(json.dumps(x).encode()) for x in DESCRIPTIONS),
  *(judge.zipped(judge.members(temperature=x)) for x in (
    np.float64(1e300), np.int64(2**40), np.array("x"), np.array(None), np.float32(np.nan), np.longdouble(1))),
  *(judge.zipped(judge.members(("layer/kernel", np.ones(2)), **{name: np.ones(2)})) for name in (
    "layer", "/", "a//b", "__class__/x", "layer/kernel", "a/" * 40))])
def test_calibrators(tmp_path, content):
  (tmp_path / "x.npz").write_bytes(content)
  value, refusal = read(calibrators.load, tmp_path / "x.npz", refusals=ValueError)
  if refusal:
    return
  with np.load(tmp_path / "x.npz") as arrays, np.errstate(over="ignore"):
    assert len(set(arrays.files)) == len(arrays.files)
    for name in set(arrays.files) - {"calibrator.json"}:
      node = value if isinstance(value, dict) else value.params
      for part in name.split("/"):
        node = node[part]
      x = arrays[name]
      np.testing.assert_array_equal(node, x.astype(np.float32) if x.dtype.kind == "f" else x)


LOGITS, LABELS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 3


@attacked(judge.archives(logits=LOGITS, labels=LABELS), [
  judge.zipped(judge.members(logits=x, labels=y)) for x, y in (
    (LOGITS.astype(object), LABELS), (LOGITS[:, :0], LABELS), (LOGITS, LABELS - 1), (LOGITS, LABELS + 2**40))])
def test_predictions(tmp_path, content):
  (tmp_path / "x.npz").write_bytes(content)
  value, refusal = read(evaluation.load, tmp_path / "x.npz", refusals=(UserError, ValueError))
  if not refusal:
    with np.load(tmp_path / "x.npz") as arrays:
      np.testing.assert_array_equal(value.labels, arrays["labels"])


CIFAR = archive_files.cifar10_members(archive_files.cifar_arrays(per_batch=4))


@pytest.mark.parametrize("batch", [
  b"\x80\x02c" + judge.CANARY.encode() + b"\ntouch\n(tR.", b"\x80\x02cos\nsystem\n(U\x04truetR.", b"\x80\x02}.", b"",
  *(pickle.dumps({"labels": [0] * 2} | x, 2) for x in ({}, {"data": 1}, {"data": bytes(6144)}, {3: 1}))])
def test_pickles_in_archives(batch, tmp_path):
  archive_files.tar(tmp_path / "archive", CIFAR | {"data_batch_1": batch})
  assert read(archives.read, "cifar10", tmp_path / "archive", archives.sha256(tmp_path / "archive"))[1]


READERS = {  # What reads each file.
  **dict.fromkeys(("x.npz", "x.csv", "x.jsonl", "x.parquet", "x.json", "x.eval"), evaluation.load),
  "images.npz": lambda path: data.load("npz", seed=0, path=str(path), validation_fraction=0.2),
  "x.tar.gz": lambda path: archives.read("cifar10", path), "calibrator.npz": calibrators.load,
  "lock": lambda path: lock.hold(path.parent)(path.read_text)(),
  "x.safetensors": lambda path: models.from_torch("vit_small", path),
  "config.json": lambda path: run.Run.load(path.parent), "manifest.json": lambda path: manifest.read(path.parent)}
ACCEPTED = {*(("manifest.json", thing) for thing in judge.PLACES), ("lock", "gone"), ("lock", "empty")}


@pytest.mark.parametrize(("name", "thing"), [
  ("config.json", "sparse"), *((name, thing) for name in READERS for thing in (
    judge.PLACES if name in ("x.npz", "config.json", "lock") else ("pipe", "folder")))])
def test_what_stands_in_place_of_a_file_is_refused(name, thing, tmp_path):
  judge.put_in_place(tmp_path / name, thing)
  _, refusal = read(READERS[name], tmp_path / name, refusals=(UserError, ValueError))
  assert refusal or (name, thing) in ACCEPTED
