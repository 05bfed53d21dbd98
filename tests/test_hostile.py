"""Mutated configs and files: each is accepted or refused in one sentence, without a traceback and without waiting."""

import io
import json
import os
import pathlib
import random
import shutil
import zipfile

import numpy as np
import pytest

from calib_jax import calibrators, data, evaluation, manifest, run_directory
from calib_jax import config as run_config
from calib_jax.errors import UserError
from calib_jax.evaluation import compare
from calib_jax.reports.figures import _logged
from calib_jax.run import Run
from calib_jax.training import MetricLog, groups

VALUES = ("", "0", "-1", "1", "3", "0.5", "1e30", "nan", "inf", "-inf", "None", "True", "false", "''", "()", "(1,)",
          "(0.5, 0.2)", "('a',)", "(None,)", "{}", "{'name': 'focal'}", "{'a': 1}", "{1: 2}", "[]", "((", "1" * 30,
          "99999999999", "(99999999999,)", "x" * 5000, "(" * 500, "é", "a.b", "name", "focal", "mlp", "best",
          "__class__", "2147483648", "(-1,)", "(0,)", "1e400", "0x10", "1_0", "\x00", "a=b", "lambda: 0")


def _keys(config, prefix=""):
  """Every key of a config, of sections too."""
  for name in config:
    yield prefix + name
    if hasattr(config[name], "keys"):
      yield from _keys(config[name], f"{prefix}{name}.")


def _names(key):
  family = run_config.SECTIONS.get(key.removesuffix(".name"))
  return tuple(family.known) if family else ("temperature_scaling", "classwise_loss_scaling", "meta_calibration")


def _refused(message):
  assert "\n" not in message and len(message) < 3000 and "Traceback" not in message, message


@pytest.mark.parametrize("part", range(4))
def test_mutated_configs_are_read_or_refused_in_a_sentence(part):
  path = "configs/digits_savuc.py"
  keys = [*_keys(run_config.load(path, [])), "x", "training.x", "evaluation.calibrators.New.name"]
  draw = random.Random(part)
  accepted = 0
  for _ in range(500):
    arguments = []
    for _ in range(draw.randint(1, 3)):
      key = draw.choice(keys)
      value = draw.choice(_names(key)) if key.endswith(".name") and draw.random() < 0.5 else draw.choice(VALUES)
      broken = draw.choice(("--x", "y", "--config.", key))
      arguments.append(f"--config.{key}={value}" if draw.random() > 0.02 else broken)
    try:
      run_config.load(path, arguments)
      accepted += 1
    except UserError as error:
      _refused(str(error))
  assert accepted > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_mutated_configs_are_checked_in_a_sentence(part):
  path, draw = "configs/digits_savuc.py", random.Random(100 + part)
  keys = list(_keys(run_config.load(path, ["--config.loss.secondary.name="])))
  for _ in range(150):
    arguments = ["--config.loss.secondary.name=", f"--config.{draw.choice(keys)}={draw.choice(VALUES)}"]
    try:
      run_config.check(run_config.load(path, arguments), 1)
    except UserError as error:
      _refused(str(error))


def _npz(**arrays):
  file = io.BytesIO()
  np.savez(file, **arrays)
  return file.getvalue()


def _with_header(header, rest=b"\0" * 64, name="logits.npy"):
  """An .npz whose array has this header."""
  text = header.encode("latin1")
  text += b" " * (-(len(text) + 11) % 64) + b"\n"
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive:
    archive.writestr(name, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest)
    archive.writestr("labels.npy", b"")
  return file.getvalue()


LOGITS, LABELS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 3
IMAGES = np.arange(30 * 16, dtype=np.uint8).reshape(30, 4, 4)
SOUND = {"predictions": _npz(logits=LOGITS, labels=LABELS), "images": _npz(images=IMAGES, labels=np.arange(30) % 3),
         "params": _npz(temperature=np.float32(1.5), **{"layer/kernel": np.ones(3)})}
def _images(path):
  return data.load("npz", seed=0, path=str(path), validation_fraction=0.2)


READERS = {"predictions": evaluation.load, "images": lambda path: _images(path),
           "params": calibrators.load}
ARRAYS = {
  "float labels": {"labels": LABELS * 1.0}, "labels beyond int32": {"labels": LABELS + 2**31},
  "huge labels": {"labels": np.full(8, 2**63 - 1)}, "unsigned": {"labels": np.full(8, 2**64 - 1, np.uint64)},
  "negative": {"labels": LABELS - 2}, "bool": {"labels": LABELS > 0}, "text": {"labels": LABELS.astype(str)},
  "objects": {"labels": LABELS.astype(object)}, "times": {"labels": LABELS.astype("M8[s]")},
  "fields": {"labels": np.zeros(8, [("a", "i4")])}, "column": {"labels": LABELS[:, None]}, "scalar": {"labels": 3},
  "none": {}, "no rows": {"labels": LABELS[:0]},
}
IMAGE_ARRAYS = {"no channels": np.zeros((8, 4, 4, 0), np.uint8), "no pixels": np.zeros((8, 0, 0, 1), np.uint8),
                "float": np.zeros((8, 4, 4)), "five axes": np.zeros((8, 1, 1, 1, 1), np.uint8),
                "flat": np.zeros(8, np.uint8), "none": np.zeros((0, 4, 4), np.uint8)}
HEADERS = ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4), }", "{'descr': '|O', 'fortran_order': False, "
           "'shape': (8,), }", "((((((((((", "(" * 3000, "{'descr': " + "[" * 400, "{", "\x00\x01", "{'shape': (8, 3)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': 'ab', }", "'''", "{'descr': 'zz', 'fortran_order': 0, "
           "'shape': (4,), }", "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4), }")


def _read(kind, path):
  """Whether a reader takes a file; what it refuses, it refuses in one sentence."""
  try:
    READERS[kind](path)
    return True
  except (UserError, ValueError) as error:
    assert isinstance(error, UserError) or kind == "params"
    _refused(str(error))
    assert "allow_pickle" not in str(error)
    return False


def _mutated(content, draw, end=None):
  """``content`` with one to four changes in its first ``end`` bytes."""
  content = bytearray(content)
  for _ in range(draw.randint(1, 4)):
    place = draw.randrange(len(content[:end]) or 1)
    match draw.randrange(5):
      case 0 | 1:
        content[place:place + 1] = draw.randbytes(1)
      case 2:
        del content[place:place + draw.randint(1, 40)]
      case 3:
        content[place:place] = draw.randbytes(draw.randint(1, 20))
      case 4:
        content[place:place + 1] = draw.choice((b"9", b"(", b"O", b"-", b"'", b"V", b"f"))
  return bytes(content)


@pytest.mark.parametrize("kind", READERS)
def test_mutated_files_are_read_or_refused_in_a_sentence(kind, tmp_path):
  draw, path, sound = random.Random(0), tmp_path / "file.npz", SOUND[kind]
  path.write_bytes(sound)
  assert _read(kind, path)
  for _ in range(400):
    path.write_bytes(_mutated(sound, draw))
    _read(kind, path)
  with zipfile.ZipFile(io.BytesIO(sound)) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  for _ in range(400):  # Within an array, of which the archive's checksum says nothing then.
    changed = draw.choice(list(members))
    with zipfile.ZipFile(path, "w") as archive:
      for name, content in members.items():
        archive.writestr(name, _mutated(content, draw, 130) if name == changed else content)
    _read(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_files_that_lie_are_refused_in_a_sentence(kind, tmp_path):
  path = tmp_path / "file.npz"
  for header in HEADERS:
    for name in ("logits.npy", "images.npy", "temperature.npy"):
      path.write_bytes(_with_header(header, name=name))
      assert not _read(kind, path)
  for content in (b"", b"\x80\x04\x95", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"[1, 2]"):
    path.write_bytes(content)
    assert not _read(kind, path)
  for arrays in ARRAYS.values():
    path.write_bytes(_npz(logits=LOGITS, images=IMAGES[:8], **arrays))
    assert not _read(kind, path) or kind == "params" or (kind == "predictions" and arrays is ARRAYS["column"])
  for images in IMAGE_ARRAYS.values():
    path.write_bytes(_npz(logits=LOGITS, images=images, labels=LABELS))
    assert not _read(kind, path) or kind != "images"
  assert not _read(kind, tmp_path)
  assert not _read(kind, tmp_path / "absent.npz")
  assert not _read(kind, tmp_path / ("x" * 300))
  assert not _read(kind, "/dev/zero")
  os.mkfifo(tmp_path / "pipe.npz")  # Reading it would wait for a writer.
  assert not _read(kind, tmp_path / "pipe.npz")


OLD = pathlib.Path(__file__).parent / "old_run"


def _in_place_of(path, what):
  """Puts something else where a file or a directory of a run was."""
  if path.is_dir():
    shutil.rmtree(path)
  path.unlink(missing_ok=True)
  if what == "directory":
    path.mkdir()
  elif what == "pipe":
    os.mkfifo(path)  # Reading it would wait for a writer, and writing for a reader.
  elif what == "device":
    path.symlink_to("/dev/zero")
  else:
    path.write_text(what)


@pytest.mark.parametrize("what", ["directory", "pipe", "device", "[" * 100_000, "[1]", "{", '{"seed": 1, "seed": 2}'],
                         ids=lambda what: what[:12])
def test_what_stands_in_place_of_a_part_of_a_run_is_one_sentence(what, tmp_path, capsys):
  names = ["config.json", "checkpoints", "predictions", "manifest.json", "metrics.jsonl", "results.json"]
  for name in names if what in ("pipe", "device") else names[:1 if what == "directory" else 3]:
    folder = tmp_path / name / "run"
    shutil.copytree(OLD, folder)
    _in_place_of(folder / name, what)
    with pytest.raises(UserError) as raised:
      Run.load(folder)
    _refused(str(raised.value))
    if name != "config.json" or what in ("directory", "pipe", "device"):
      with pytest.raises(UserError, match=f"{name} must be a .* move it away"):
        run_directory.create(folder)  # Before anything is trained.
  if what != "directory":
    folder = tmp_path / "shape"
    shutil.copytree(OLD, folder)
    group = groups.groups_on_disk(folder)[0]
    _in_place_of(group.folder.with_suffix(".json"), what)
    with pytest.raises(UserError, match=r"seeds?[\d-]+\.json (is a pipe|cannot be read as JSON)"):
      group.read_shape()
    _in_place_of(folder / "manifest.json", what)
    assert manifest.read(folder) is None
    assert "manifest.json is damaged" in capsys.readouterr().err
    _in_place_of(folder / "metrics.jsonl", what)
    assert _logged(folder / "metrics.jsonl") == {}
    _in_place_of(folder / "config.json", what)
    assert compare.main([str(folder), str(OLD)]) == 2
    error = capsys.readouterr().err
    assert "config.json" in error and "Traceback" not in error
  if what == "pipe":
    with pytest.raises(UserError, match="metrics.jsonl is a pipe"):
      MetricLog(folder)


@pytest.mark.parametrize(("fields", "message"), [
  ({"num_seeds": 10**12}, "num_seeds must be less than 2"),
  ({"num_seeds": 10**9}, r"num_seeds must be in \[1, 10000\]"),
  ({"num_seeds": 2.5}, "num_seeds must be an integer"), ({"num_seeds": None}, "num_seeds must be an integer"),
  ({"num_seeds": "1"}, "num_seeds must be an integer"), ({"seed": -1}, r"seed must be in"),
])
def test_the_seeds_of_a_config_are_few(fields, message, tmp_path):
  shutil.copytree(OLD, tmp_path / "run")
  path = tmp_path / "run" / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=message):
    Run.load(tmp_path / "run")


def test_the_seeds_in_names_of_checkpoints_are_few(tmp_path):
  (tmp_path / "checkpoints" / "seeds0-999999999999").mkdir(parents=True)
  with pytest.raises(UserError, match="is named as the models of 1,000,000,000,000 seeds"):
    groups.groups_on_disk(tmp_path)


@pytest.mark.parametrize("fields", [{"num_classes": 1.5}, {"num_classes": 0}, {"image_shape": [8, 8]}, {"mean": [[1]]},
                                    {"image_shape": [-8, -8, 1]}, {"image_shape": 3}, {"std": "x"}, {"mean": None}])
def test_shapes_that_do_not_fit_together_are_one_sentence(fields, tmp_path):
  group = groups.Group((0,), tmp_path / "seed0")
  group.write_shape(groups.Shape((8, 8, 1), 3, np.zeros(1), np.ones(1)))
  path = group.folder.with_suffix(".json")
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=r"seed0\.json is damaged"):
    group.read_shape()
