"""Predictions of other frameworks: formats, names and kinds of arrays, and one sentence for what cannot be read."""

import pickle
import random
import re

import numpy as np
import pytest

from calib_jax import evaluation, files
from calib_jax.errors import UserError

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(12, 3)).astype(np.float32)
LABELS = np.arange(12) % 3
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
NAMES = np.array(["cat", "dog", "eel"])


def _loaded(tmp_path, **arrays):
  np.savez(tmp_path / "p.npz", **arrays)
  notes = []
  return evaluation.load(tmp_path / "p.npz", say=notes.append), " ".join(notes)


@pytest.mark.parametrize("labels", [
  LABELS[:, None], np.eye(3)[LABELS], np.eye(3, dtype=bool)[LABELS], LABELS.astype(np.uint8), LABELS.astype(np.int64)])
def test_labels_of_every_kind_are_the_same_integers(labels, tmp_path):
  loaded, notes = _loaded(tmp_path, logits=LOGITS, labels=labels)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  assert loaded.labels.dtype == np.int32 and not notes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_of_every_precision_become_float32(dtype, tmp_path):
  loaded, _ = _loaded(tmp_path, logits=LOGITS.astype(dtype), labels=LABELS)
  assert loaded.logits.dtype == np.float32
  np.testing.assert_allclose(loaded.logits, LOGITS, rtol=2e-3 if dtype == np.float16 else 0, atol=1e-4)
  loaded, _ = _loaded(tmp_path, probs=PROBS.astype(dtype), labels=LABELS)
  np.testing.assert_allclose(np.exp(loaded.logits), PROBS, rtol=2e-3 if dtype == np.float16 else 1e-6)


def test_labels_may_be_names_of_classes(tmp_path):
  loaded, _ = _loaded(tmp_path, logits=LOGITS, labels=NAMES[LABELS], classes=NAMES)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  assert loaded.classes == tuple(NAMES)


@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_one_column_is_the_probability_or_the_log_odds_of_class_1(shape, tmp_path):
  odds, labels = LOGITS[:, 0], LABELS > 0
  expected = 1 / (1 + np.exp(-odds.astype(np.float64)))
  for arrays in ({"logits": odds.reshape(shape)}, {"probs": expected.reshape(shape)}):
    loaded, _ = _loaded(tmp_path, labels=labels, **arrays)
    p = np.exp(loaded.logits.astype(np.float64))
    np.testing.assert_allclose(p[:, 1] / p.sum(1), expected, rtol=1e-5)
    np.testing.assert_array_equal(loaded.labels, labels)


@pytest.mark.parametrize(("arrays", "note", "logits"), [
  ({"predictions": PROBS, "targets": LABELS}, "predictions are taken for probabilities, because each row sums", None),
  ({"scores": LOGITS, "y_true": LABELS}, "scores are taken for logits, because they are no probabilities", LOGITS),
  ({"logits": PROBS, "labels": LABELS}, "logits are probabilities .* so their logarithms are used", None),
  ({"probs": PROBS, "logits": LOGITS, "labels": LABELS}, "holds logits and probs: logits are used", LOGITS),
])
def test_what_is_chosen_is_said(tmp_path, arrays, note, logits):
  loaded, notes = _loaded(tmp_path, **arrays)
  assert re.search(note, notes)
  np.testing.assert_allclose(loaded.logits, np.log(PROBS) if logits is None else logits, rtol=1e-5, atol=1e-6)


def test_groups_are_kept_by_name(tmp_path):
  patients = np.array(["b", "a"])[np.arange(12) // 6]
  np.savez(tmp_path / "p.npz", logits=LOGITS, labels=LABELS, patient=patients)
  groups = evaluation.load(tmp_path / "p.npz", groups="patient").groups
  assert len(set(groups[:6])) == len(set(groups[6:])) == 1 and groups[0] != groups[6]
  with pytest.raises(UserError, match="the groups 'clinic' must be 12 integers or texts: it holds nothing"):
    evaluation.load(tmp_path / "p.npz", groups="clinic")


def test_a_pair_of_npy_is_read(tmp_path):
  np.save(tmp_path / "val_probs.npy", PROBS)
  np.save(tmp_path / "y.npy", LABELS)
  loaded = evaluation.load(f"{tmp_path}/val_probs.npy,{tmp_path}/y.npy")
  np.testing.assert_allclose(loaded.logits, np.log(PROBS), rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  with pytest.raises(UserError, match=r"one array: give two files as LOGITS.npy,LABELS.npy"):
    evaluation.load(tmp_path / "y.npy")


def _table(columns, write):
  names = [f"{columns}{name}" for name in NAMES]
  write({"id": np.arange(12), "label": NAMES[LABELS], **dict(zip(names, LOGITS.T, strict=True))})


def test_csv_has_classes_in_its_header(tmp_path):
  def write(columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "p.csv").write_text("\n".join(lines), encoding="utf-8")

  _table("logit_", write)
  loaded = evaluation.load(tmp_path / "p.csv", groups="id")
  np.testing.assert_allclose(loaded.logits, LOGITS, rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  assert loaded.classes == tuple(NAMES) and len(set(loaded.groups)) == 12
  # Numbered columns are classes by number, whatever their order.
  write({"prob_2": PROBS[:, 2], "prob_0": PROBS[:, 0], "prob_1": PROBS[:, 1], "y_true": LABELS})
  np.testing.assert_allclose(evaluation.load(tmp_path / "p.csv").logits, np.log(PROBS), rtol=1e-5)


def test_parquet_has_columns_or_lists(tmp_path):
  pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
  from pyarrow import parquet

  _table("logit_", lambda columns: parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet"))
  loaded = evaluation.load(tmp_path / "p.parquet")
  np.testing.assert_array_equal(loaded.logits, LOGITS)
  assert loaded.classes == tuple(NAMES)
  parquet.write_table(pyarrow.table({"logits": list(LOGITS), "labels": LABELS}), tmp_path / "p.parquet")
  np.testing.assert_array_equal(evaluation.load(tmp_path / "p.parquet").logits, LOGITS)


def test_parquet_without_pyarrow_is_one_sentence(tmp_path, monkeypatch):
  (tmp_path / "p.parquet").write_bytes(b"PAR1")
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(UserError, match="to read Parquet, pyarrow must be installed"):
    evaluation.load(tmp_path / "p.parquet")


def test_pickles_are_refused_with_the_line_that_converts_them(tmp_path):
  path = tmp_path / "p.pkl"
  path.write_bytes(pickle.dumps({"logits": LOGITS, "labels": LABELS}))
  with pytest.raises(UserError, match="is a pickle, which is not read") as raised:
    evaluation.load(path)
  line = str(raised.value).split("convert it: ")[1]
  exec(line, {})  # The line does what the sentence says.
  np.testing.assert_array_equal(evaluation.load(tmp_path / "p.npz").logits, LOGITS)
  path.rename(tmp_path / "p.bin")
  with pytest.raises(UserError, match="is a pickle, which is not read"):
    evaluation.load(tmp_path / "p.bin")


@pytest.mark.parametrize(("name", "content", "message"), [
  ("p.csv", b"", "must have a header with a column label"),
  ("p.csv", b"0.1,0.9,1\n0.2,0.8,0\n", "must have a header with a column label"),
  ("p.csv", b"label,logit_0,logit_1\n0,a,b\n", "cannot be read as CSV"),
  ("p.csv", b"label,logit_0,logit_1\n0,1,2\n0,1\n", "cannot be read as CSV"),
  ("p.csv", b"label,logit_0,logit_1\n0,nan,2\n", "1 of the 1 rows of its logit are not finite"),
  ("p.csv", b"label,logit_0,logit_1\n0.5,1,2\n", "its labels are text, such as '0.5'"),
  ("p.parquet", b"PAR1PAR1", "cannot be read as Parquet"),
  ("a.npy,b.npy", None, "there is no file"),
])
def test_bad_files_are_one_sentence(tmp_path, name, content, message):
  if content is not None:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=message):
    evaluation.load(str(tmp_path / name))


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz", "parquet"])
def test_mutated_files_are_read_or_refused_in_a_sentence(suffix, tmp_path):
  draw, path = random.Random(0), tmp_path / f"p.{suffix}"
  name = path
  if suffix == "csv":
    rows = [f"{label},{','.join(map(str, row))}" for label, row in zip(LABELS, LOGITS, strict=True)]
    path.write_text("\n".join(["label,logit_0,logit_1,logit_2", *rows]))
  elif suffix == "npz":
    np.savez(path, logits=LOGITS, labels=LABELS)
  elif suffix == "parquet":
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
    from pyarrow import parquet

    _table("logit_", lambda columns: parquet.write_table(pyarrow.table(columns), path))
  else:
    np.save(path, LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    name = f"{path},{tmp_path}/labels.npy"
  sound, refused = path.read_bytes(), 0
  for _ in range(200):
    content = bytearray(sound)
    for _ in range(draw.randint(1, 4)):
      # The header of .csv and .npy is at their beginning, that of .parquet at its end, and .npz has several.
      place = {"npz": draw.randrange(len(content)), "parquet": max(len(content) - draw.randrange(700), 0)}.get(
        suffix, draw.randrange(min(len(content), 150)))
      content[place:place + draw.randint(0, 3)] = draw.choice((b"", b"9", b"(", b"\n", b'"', b",", b"\xff", b"\x00"))
    path.write_bytes(content)
    try:
      evaluation.load(name)
    except UserError as error:
      refused += 1
      assert "\n" not in str(error) and len(str(error)) < 2000 and "allow_pickle" not in str(error)
  assert refused > 50


def test_large_arrays_are_mapped_and_checked(tmp_path, monkeypatch):
  monkeypatch.setattr(files, "MAPPED", 1)
  np.savez(tmp_path / "p.npz", logits=np.asfortranarray(LOGITS), labels=LABELS, train_counts=np.array([9, 5, 1]))
  loaded = evaluation.load(tmp_path / "p.npz")
  assert isinstance(loaded.logits, np.memmap)
  np.testing.assert_array_equal(loaded.logits, LOGITS)
  np.testing.assert_array_equal(loaded.train_counts, [9, 5, 1])
  files.release(loaded.logits)  # What is read again is the same.
  np.testing.assert_array_equal(loaded.logits, LOGITS)
  np.savez_compressed(tmp_path / "c.npz", logits=LOGITS, labels=LABELS)
  assert not isinstance(evaluation.load(tmp_path / "c.npz").logits, np.memmap)
  content = bytearray((tmp_path / "p.npz").read_bytes())
  content[content.index(LOGITS.tobytes("F")) + 20] ^= 1  # One wrong bit, which the checksum notices.
  (tmp_path / "p.npz").write_bytes(content)
  with pytest.raises(UserError, match="cannot be read"):
    evaluation.load(tmp_path / "p.npz")
