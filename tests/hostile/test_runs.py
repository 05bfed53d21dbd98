"""What a run's directory holds is as it was written, or something is said; what is no file is not waited for."""

import asyncio
import contextlib
import functools
import json
import math
import os
import pathlib
import shutil
import tempfile

from hypothesis import strategies as st
import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system import process
from calib_jax._system.errors import UserError
from calib_jax.evaluation.reports.curves import logged
from calib_jax.training import checkpoints, data, models, run, seed_groups
from calib_jax.training import config as run_config
from calib_jax.training.data import archives
from calib_jax.training.run import directory, lock, manifest
from calib_jax.training.run_log import metric_log
from tests.hostile import files
from tests.hostile.judge import attacked, read

SHAPE = {"image_shape": [8, 8, 1], "num_classes": 10, "mean": [0.3], "std": [0.3], "dtype": "uint8"}
WRONG_SHAPES = [SHAPE | change for change in (
  {"image_shape": [8, True, 1]}, {"image_shape": [8, -8, 1]}, {"image_shape": [10**9, 10**9, 1]}, {"image_shape": 8},
  {"num_classes": 1}, {"num_classes": True}, {"std": [0.0]}, {"mean": [float("nan")]}, {"mean": [1, 1]}, {"std": "x"})]
ENVIRONMENT, CONFIG = {"python": "3.13", "devices": ["cpu"]}, run_config.load("configs/digits_savuc.py", [])
LISTED = manifest.Manifest("{}\n", {"config.json": "ab" * 32, "results.md": "cd" * 32})
ENTRIES = [{"seed": 0, "step": step, "train/loss": 1.0 / step, "validation/nll": 2.0 / step} for step in range(1, 9)]


@pytest.mark.slow
@attacked(files.json_texts(SHAPE), [json.dumps(x).encode() for x in WRONG_SHAPES])
def test_shapes_beside_checkpoints(folder, content):
  (folder / "seed0.json").write_bytes(content)
  answer = read(seed_groups.Group((0,), folder / "seed0").read_shape)
  if not answer.refusal:
    shape, fields = answer.value, json.loads(content)
    assert all(type(x) is int and x > 0 for x in (*shape.image_shape, shape.num_classes - 1, shape.num_classes))
    assert np.isfinite(shape.mean).all() and (shape.std > 0).all() and shape.std.shape == shape.image_shape[-1:]
    np.testing.assert_array_equal([shape.mean, shape.std], np.array([fields["mean"], fields["std"]], np.float32))


@attacked(files.json_texts(LISTED._asdict() | {"sha256": manifest._of(LISTED)}), [*files.BROKEN, json.dumps(
  LISTED._asdict() | {"config": "x", "sha256": manifest._of(LISTED)}).encode()])
def test_manifests(folder, content):
  (folder / "manifest.json").write_bytes(content)
  listed, reason = read(manifest.read, folder).value
  assert listed == LISTED or (listed is None and "damaged" in reason)


@attacked(files.json_texts(ENVIRONMENT), [json.dumps({"devices": x}).encode() for x in (["\x1b[2J"], [], "cpu", 3)])
def test_environments(folder, content):
  (folder / "environment.json").write_bytes(content)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(directory, "environment", lambda: ENVIRONMENT)  # It starts git.
    sentence = read(directory.write_config, CONFIG, folder, folder=folder).value
  assert not sentence or (sentence.isprintable() and len(sentence) < 3000)
  assert json.loads((folder / "environment.json").read_text()) == ENVIRONMENT


@attacked(st.lists(st.tuples(st.integers(0, 7), files.json_texts(ENTRIES[0])), min_size=1, max_size=3), [
  [(3, x)] for x in (b"[" * 100_000, b"\xff\xfe", b"null", b'{"seed": 0}', b'{"step": [1]}',
                     b'{"step": "x", "seed": 0, "train/loss": 1}')])
def test_logs(folder, changes):
  lines = [json.dumps(entry).encode() for entry in ENTRIES]
  for place, line in changes:
    lines[place] = line.replace(b"\n", b" ")
  (folder / "metrics.jsonl").write_bytes(b"\n".join(lines))

  def resumed():
    curves = logged(folder / "metrics.jsonl")
    with contextlib.closing(metric_log.MetricLog(folder)) as log:
      log.resume([0], 4)
      log.write(5, {"train/loss": 0.2}, seed=0)
    return curves

  for steps, values in read(resumed, folder=folder).value.values():
    assert len(steps) == len(values) and all(isinstance(x, int) and math.isfinite(x) for x in steps)
  left = (folder / "metrics.jsonl").read_text().splitlines()
  assert json.loads(left[-1]) == {"seed": 0, "step": 5, "train/loss": 0.2}
  changed = {place for place, _ in changes}
  assert {lines[i].decode() for i in range(4) if i not in changed} <= set(left)


@pytest.fixture(scope="module", autouse=True)
def _loops_of_a_program():
  """Event loops that take late reports of storage: a damaged checkpoint is closed while threads still read it."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(asyncio.SelectorEventLoop, "call_soon_threadsafe", process.unless_closed)
    yield


@functools.cache
def saved() -> tuple[pathlib.Path, dict[str, np.ndarray]]:
  """Returns a folder of checkpoints of steps 2 and 3, and the arrays of step 3; those of step 2 are one more."""
  folder, rng = pathlib.Path(tempfile.mkdtemp()) / "seed0", np.random.default_rng(0)
  arrays = {"a": rng.normal(size=(1, 3, 4)).astype(np.float32), "b": rng.normal(size=(1, 9)).astype(np.float32)}
  writer = checkpoints.Checkpoints(folder)
  for step in (2, 3):
    writer.save(step, {name: x + np.float32(3 - step) for name, x in arrays.items()})
  writer.close()
  return folder, arrays


@attacked(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from((
  "gone", "renamed", "other", "edited")), files.edits), min_size=1, max_size=2), [
    [(place, 0, "edited", [("put", -40, b"123")])] for place in range(0, 40, 3)])
def test_checkpoints(folder, damages):
  shutil.copytree(saved()[0], folder / "seed0")
  for place, other, way, edits in damages:
    paths = sorted(path for path in (folder / "seed0").rglob("*") if path.is_file() or way == "renamed")
    path, other = paths[place % len(paths)], paths[other % len(paths)]
    if way in ("gone", "renamed"):
      path.rename(path.with_name("x" if way == "gone" else "9"))
    else:
      path.write_bytes(other.read_bytes() if way == "other" else files.edited(path.read_bytes(), edits))
  answer = read(checkpoints.newest, folder / "seed0")
  if not answer.refusal and answer.value:
    step, tree = answer.value
    for name, x in saved()[1].items():
      np.testing.assert_array_equal(tree[name], x + np.float32(3 - step))


def test_a_checkpoint_in_the_place_of_another_is_refused(tmp_path):
  shutil.copytree(saved()[0] / "2", tmp_path / "seed0/3")
  assert "step 2" in read(checkpoints.newest, tmp_path / "seed0").refusal


def hold(path):
  with lock.hold(path.parent):
    return path.read_text().startswith(f"process {os.getpid()} on ")


# What reads each file.
READERS = {
  **dict.fromkeys(("x.npz", "x.csv", "x.jsonl", "x.parquet"), evaluation.load),
  "x.npy": lambda path: evaluation.load(f"{path},{path}"),
  "images.npz": lambda path: data.load("npz", seed=0, path=str(path), validation_fraction=0.2),
  "wnids.txt": lambda path: data.load("tiny_imagenet", seed=0, dir=str(path.parent), validation_fraction=0.2),
  "x.tar.gz": lambda path: archives.read("cifar10", path), "x.zip": lambda path: archives.read("tiny_imagenet", path),
  "calibrator.npz": calibrators.load, "x.safetensors": lambda path: models.from_torch("vit_small", path),
  "config.json": lambda path: run.Run.load(path.parent), "seed0/2/x": lambda path: checkpoints.newest(path.parents[1]),
  "environment.json": lambda path: directory.check_entries(path.parent), "lock": hold,
  "seed0.json": lambda path: seed_groups.Group((0,), path.with_suffix("")).read_shape(),
  "manifest.json": lambda path: manifest.read(path.parent),
  "metrics.jsonl": lambda path: metric_log.MetricLog(path.parent).close()}
ACCEPTED = {("seed0.json", "gone"), *(("manifest.json", thing) for thing in files.PLACES), *(
  (name, "gone") for name in ("environment.json", "metrics.jsonl", "lock", "seed0/2/x")), ("lock", "empty")}


@pytest.mark.parametrize(("name", "thing"), [
  ("config.json", "sparse"), *((name, thing) for name in READERS for thing in (
    files.PLACES if name in ("x.npz", "config.json", "lock") else ("pipe", "folder", "absent", "gone")))])
def test_what_stands_in_place_of_a_file_is_refused(name, thing, tmp_path):
  (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
  files.put_in_place(tmp_path / name, thing)
  answer = read(READERS[name], tmp_path / name, folder=tmp_path, refusals=(UserError, ValueError))
  assert answer.refusal or (name, thing) in ACCEPTED
