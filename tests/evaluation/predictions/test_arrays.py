"""Arrays of other frameworks: names and kinds, groups, several axes, and one sentence for what cannot be read."""

import pickle
import re

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system import files
from calib_jax._system.errors import UserError
from tests.evaluation.predictions.data import (
  LABELS,
  LOGITS,
  NAMES,
  PROBS,
  RNG,
  TABLES,
  assert_same,
  columns_of,
  load,
  written,
)


@pytest.mark.parametrize("labels", [
  LABELS[:, None], np.eye(3)[LABELS], np.eye(3, dtype=bool)[LABELS], LABELS.astype(np.uint8), LABELS, NAMES[LABELS]])
def test_labels_of_every_kind_are_the_same_integers(labels, tmp_path):
  classes = {"classes": NAMES} if labels.dtype.kind == "U" else {}
  loaded, notes = load(tmp_path, {"logits": LOGITS, "labels": labels, **classes})
  assert_same(loaded, classes=classes.get("classes"))
  assert not notes


@pytest.mark.parametrize("dtype", ["f2", "f8", ">f2", ">f4"])
def test_numbers_of_every_precision_and_byte_order_become_float32(dtype, tmp_path):
  for name, outputs in (("logits", LOGITS), ("probs", PROBS)):
    loaded, _ = load(tmp_path, {name: outputs.astype(dtype), "labels": LABELS.astype(">i4"),
                                "features": LOGITS.astype(dtype)})
    np.testing.assert_allclose(loaded.logits if name == "logits" else np.exp(loaded.logits), outputs, rtol=1e-6,
                               atol=2e-3 if dtype[-2:] == "f2" else 1e-6)
    np.testing.assert_array_equal(loaded.features, LOGITS.astype(dtype))
    np.testing.assert_array_equal(loaded.labels, LABELS)
    assert loaded.logits.dtype == np.float32
    assert all(x.dtype.isnative for x in loaded if isinstance(x, np.ndarray))


@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_one_column_is_the_probability_or_the_log_odds_of_class_1(shape, tmp_path):
  odds, labels = LOGITS[:, 0], LABELS > 0
  expected = 1 / (1 + np.exp(-odds.astype(np.float64)))
  for name, outputs in (("logits", odds), ("probs", expected)):
    loaded, _ = load(tmp_path, {name: outputs.reshape(shape), "labels": labels})
    p = np.exp(loaded.logits.astype(np.float64))
    np.testing.assert_allclose(p[:, 1] / p.sum(1), expected, rtol=1e-5)
    np.testing.assert_array_equal(loaded.labels, labels)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_each_label_of_a_multi_label_file_is_a_binary_problem(suffix, tmp_path):
  labels, patient = (LOGITS + RNG.normal(size=LOGITS.shape) > 0).astype(int), ("patient", np.arange(12) // 2)
  columns = [("logits", LOGITS), ("labels", labels), ("classes", NAMES), patient]
  if suffix != "npz":  # The columns of labels are found by their endings, in any order.
    columns = [*reversed(columns_of("label", labels, NAMES)), *columns_of(
      {"csv": "y_score", "parquet": "logit"}[suffix], LOGITS, NAMES), patient]
  parts = evaluation.load_labels(written(tmp_path / f"p.{suffix}", columns), groups="patient")
  assert list(parts) == ["", *NAMES]
  pooled = parts[""]
  np.testing.assert_allclose(pooled.logits, np.stack([np.zeros(36), LOGITS.ravel()], axis=1), rtol=1e-5)
  np.testing.assert_array_equal(pooled.labels, labels.ravel())
  np.testing.assert_array_equal(pooled.groups, np.repeat(np.arange(6), 6))
  for k, name in enumerate(NAMES):
    np.testing.assert_allclose(parts[name].logits[:, 1], LOGITS[:, k], rtol=1e-5)
    np.testing.assert_array_equal(parts[name].labels, labels[:, k])
    assert parts[name].classes == (f"not {name}", name)


@pytest.mark.parametrize(("read", "suffix", "columns", "message"), [
  (evaluation.load_labels, "npz", {"probs": PROBS, "labels": LABELS},
   r"have probs \[N, L\] and labels \[N, L\] of 0 and 1: got float32 of shape"),
  (evaluation.load, "npz", {"probs": PROBS, "labels": np.ones((12, 3), int)},
   "must be one-hot: .* If a row can have several labels, say --task=multilabel"),
  (evaluation.load_labels, "csv", {"prob_a": PROBS[:, 0], "prob_b": PROBS[:, 1], "label_a": LABELS % 2},
   "a column of labels for each of prob_a, prob_b, .*: it has label_a")], ids=["labels", "one-hot", "columns"])
def test_multi_label_files_that_do_not_fit_are_refused(read, suffix, columns, message, tmp_path):
  with pytest.raises(UserError, match=message):
    read(written(tmp_path / f"p.{suffix}", columns))


@pytest.mark.parametrize(("arrays", "note", "logits"), [
  ({"predictions": PROBS, "targets": LABELS}, "predictions are taken for probabilities, because each row sums", None),
  ({"scores": LOGITS, "y_true": LABELS}, "scores are taken for logits, because they are no probabilities", LOGITS),
  ({"logits": PROBS, "labels": LABELS}, "logits are probabilities .* so their logarithms are used", None),
  ({"probs": PROBS, "logits": LOGITS, "labels": LABELS, "y": LABELS.astype(np.uint8)},
   "holds logits and probs: logits are used", LOGITS),
  ({"logits": LOGITS, "labels": LABELS, "weight": np.ones(12)}, r"its weights \(weight\) are not used", LOGITS),
])
def test_what_is_chosen_is_said(tmp_path, arrays, note, logits):
  loaded, notes = load(tmp_path, arrays)
  assert re.search(note, notes)
  np.testing.assert_allclose(loaded.logits, np.log(PROBS) if logits is None else logits, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS)


def test_groups_are_kept_by_name(tmp_path):
  patients = np.array(["b", "a"])[np.arange(12) // 6]
  arrays = {"logits": LOGITS, "labels": LABELS, "patient": patients}
  groups = load(tmp_path, arrays, groups="patient")[0].groups
  assert len(set(groups[:6])) == len(set(groups[6:])) == 1 and groups[0] != groups[6]
  columns = {"label": [0, 0], "logit_0": [1, 1], "logit_1": [2, 2], "patient": ["01", "1"]}
  assert len(set(load(tmp_path, columns, "csv", groups="patient")[0].groups)) == 2  # Texts, though both are integers.
  with pytest.raises(UserError, match="the groups 'clinic' must be 12 integers or texts: it holds nothing"):
    load(tmp_path, arrays, groups="clinic")


def test_a_pair_of_npy_is_read(tmp_path):
  np.save(tmp_path / "val_probs.npy", PROBS.astype(">f4"))
  np.save(tmp_path / "y.npy", LABELS.astype(">u2"))
  assert_same(evaluation.load(f"{tmp_path}/val_probs.npy,{tmp_path}/y.npy"), np.log(PROBS))
  with pytest.raises(UserError, match=r"one array: give two files as LOGITS.npy,LABELS.npy"):
    evaluation.load(tmp_path / "y.npy")


@pytest.mark.parametrize(("arrays", "message"), [
  ({"labels": LABELS, "y": LABELS[::-1]}, "holds labels and y, which differ, and only one of them can be the labels"),
  ({"labels": LABELS, "Labels": LABELS[::-1]}, "holds labels and Labels, which differ"),
  ({"labels": LABELS, "Logits": LOGITS}, "holds logits and Logits, and only one"),
  ({"labels": LABELS, "classes": NAMES, "class_names": NAMES[::-1]}, "holds classes and class_names, which differ"),
  ({"labels": LABELS, "classes": np.arange(1, 4)}, "classes are the numbers '1, 2, 3', so its labels may be these"),
  ({"labels": np.full(12, 2**64 - 1, np.uint64)}, "labels must be in .* from 18446744073709551615 to"),
  ({"labels": np.where(LABELS, LABELS, np.nan)}, r"and 4 of 12 are missing \(NaN\), the first in row 0, count"),
  ({"labels": LABELS, "train_counts": np.full(3, 2**63, np.uint64)}, "train_counts must be 3 integers of at least 0"),
  ({"labels": LABELS, "features": np.zeros((5, 2))}, r"features must be floats of shape \[12, D\]"),
  ({"labels": LABELS, "features": NAMES[LABELS]}, r"features must be floats of shape \[12, D\]"),
  ({"labels": LABELS, "classes": np.zeros(10**6, "U9")}, r"classes of shape \(1000000,\) does not fit logits of shape"),
  ({"labels": np.zeros(10**6, int)}, r"labels of shape \(1000000,\) does not fit logits of shape"),
], ids=lambda value: " ".join(value) if isinstance(value, dict) else "")
def test_ambiguous_arrays_and_what_does_not_fit_are_refused(arrays, message, tmp_path, monkeypatch):
  if "does not fit" in message:
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("an array was read"))
  with pytest.raises(UserError, match=message):
    load(tmp_path, {"logits": LOGITS, **arrays})


@pytest.mark.parametrize("suffix", ["npz", "jsonl", "parquet"])
def test_sequences_are_rows_in_groups_unless_others_are_named(suffix, tmp_path):
  arrays = {"predictions": LOGITS.reshape(4, 3, 3), "label_ids": LABELS.reshape(4, 3), "user": np.array([7, 7, 1, 1])}
  loaded, notes = load(tmp_path, arrays, suffix)
  assert_same(loaded)
  np.testing.assert_array_equal(loaded.groups, np.arange(12) // 3)
  assert "its predictions of shape (4, 3, 3) are read as 12 rows; the rows of each of its 4 sequences" in notes
  named, notes = load(tmp_path, arrays, suffix, groups="user")
  np.testing.assert_array_equal(named.groups, np.arange(12) < 6)
  assert "of shape (4, 3, 3) are read as 12 rows." in notes
  # A column of subgroups names no groups, and has one value for each sequence too; "" is a value.
  arrays |= {"task": np.array(["b", "", "a", "b"])}
  loaded, notes = load(tmp_path, arrays, suffix, by=["task", "user"])
  np.testing.assert_array_equal(loaded.groups, np.arange(12) // 3)
  assert "they are one group, unless --groups names others" in notes
  names, number = loaded.subgroups["task"]
  assert np.array(names)[number].tolist() == [name for name in ("b", "(empty)", "a", "b") for _ in range(3)]
  assert load(tmp_path, arrays, suffix, groups="user", by=["user"])[0].subgroups["user"].names == ("1", "7")


def test_the_pairs_of_an_example_with_several_labels_have_its_subgroup(tmp_path):
  arrays = {"logits": LOGITS, "labels": LABELS[:, None] == np.arange(3), "task": NAMES[LABELS]}
  parts = evaluation.load_labels(written(tmp_path / "x.npz", arrays), by=["task"])
  names, number = parts[""].subgroups["task"]
  assert names == ("cat", "dog", "eel") and number.tolist() == np.repeat(LABELS, 3).tolist()
  np.testing.assert_array_equal(parts["1"].subgroups["task"].number, LABELS)


def test_images_are_rows_and_one_row_each_is_no_group(tmp_path):
  for shape in ((2, 2, 3, 3), (12, 1, 3)):
    loaded, notes = load(tmp_path, {"logits": LOGITS.reshape(shape), "labels": LABELS.reshape(shape[:-1]),
                                    "features": np.arange(24.0).reshape(*shape[:-1], 2)})
    assert_same(loaded)
    np.testing.assert_array_equal(loaded.features, np.arange(24).reshape(12, 2))
    assert f"are read as 12 rows{'; the rows of each of its 2' if shape[0] == 2 else '.'}" in notes
    assert loaded.groups is None if shape[0] == 12 else loaded.groups.tolist() == [0] * 6 + [1] * 6


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("name", "taken"), [("logits", ""), ("probs", ""), ("scores", "are taken for probabilities"),
                                             ("log_probs", "are probabilities (each row sums to 1)")])
def test_shorter_lists_are_rows_with_fewer_options(name, taken, suffix, tmp_path):
  number = np.where(LABELS == 2, 3, 2)
  is_there = np.arange(3) < number[:, None]
  probs = np.exp(np.where(is_there, LOGITS, -np.inf).astype(float))
  probs = (probs / probs.sum(1, keepdims=True)).round(2)
  outputs = LOGITS if name == "logits" else probs
  loaded, notes = load(tmp_path, {name: [row[:k].tolist() for row, k in zip(outputs, number, strict=True)],
                                  "label": LABELS}, suffix)
  assert f"the lists of its {name} have 2 to 3 numbers: what a shorter one lacks are options" in notes
  assert taken in notes
  np.testing.assert_array_equal(np.isneginf(loaded.logits), ~is_there)
  if name == "logits":
    np.testing.assert_array_equal(loaded.logits[is_there], LOGITS[is_there])
  else:  # Rounded to two decimals, so that sums of rows are off by 0.01.
    expected = probs / probs.sum(1, keepdims=True)
    np.testing.assert_allclose(loaded.probs, expected, atol=1e-7)
    np.testing.assert_allclose(np.exp(loaded.logits), expected, atol=1e-6)
  wrong = [row[:2].tolist() for row in outputs[:-1]] + [outputs[-1].tolist()]
  with pytest.raises(UserError, match="the label of row 2, counted from 0, is 2, a class that the row does not have"):
    load(tmp_path, {"logits": wrong, "label": LABELS}, suffix, logits=True)


def test_an_archive_may_hold_probabilities_beside_minus_infinity_and_logits_are_no_probabilities_for_it(tmp_path):
  probs = np.where(np.arange(3) < 2, [[0.25, 0.75, 0]], -np.inf).repeat(12, 0)
  loaded, _ = load(tmp_path, {"probs": probs, "labels": LABELS % 2})
  np.testing.assert_array_equal(loaded.probs, np.where(np.isinf(probs), 0, probs))
  np.testing.assert_array_equal(np.isneginf(loaded.logits), np.isneginf(probs))
  negative = np.where(np.isinf(probs), probs, -probs)
  for logits, options in ((probs, {"logits": True}), (2 * probs, {}), (negative, {})):
    loaded, _ = load(tmp_path, {"logits": logits, "labels": LABELS % 2}, **options)
    assert loaded.probs is None
    np.testing.assert_array_equal(loaded.logits, logits.astype(np.float32))


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
def test_a_logit_of_minus_infinity_is_a_class_that_the_row_does_not_have(suffix, tmp_path):
  logits = np.where(np.arange(3) == (LABELS[:, None] + 1) % 3, -np.inf, LOGITS)
  outputs = [("log_probs", logits)] if suffix == "npz" else columns_of("logit", logits)
  assert_same(load(tmp_path, [*outputs, ("label", LABELS)], suffix)[0], logits)
  far = np.where(np.isinf(logits), -1e300, logits.astype(np.float64))
  assert_same(load(tmp_path, {"logits": far, "labels": LABELS})[0], logits)
  arrays = {"logits": logits, "labels": (LABELS + 1) % 3, "kind": "out_of_distribution"}
  assert load(tmp_path, arrays)[0].kind == "out_of_distribution"  # Its labels have no meaning.


@pytest.mark.parametrize(("suffix", "name"), [("npz", "prob"), ("csv", "logit"), ("jsonl", "scores"),
                                              ("parquet", "prob")])
def test_rounded_probabilities_and_percentages_are_divided_by_their_sums(suffix, name, tmp_path):
  rounded = np.array([[0.33, 0.33, 0.33], [0.67, 0.17, 0.17], [0.5, 0.25, 0.25], [0.34, 0.33, 0.34]])
  expected = rounded / rounded.sum(1, keepdims=True)

  def notes_of(outputs, **options):
    columns = [(name, outputs)] if suffix == "npz" else columns_of(name, outputs)
    loaded, notes = load(tmp_path, [*columns, ("label", LABELS[:4])], suffix, **options)
    np.testing.assert_allclose(loaded.probs, expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(loaded.logits), expected, rtol=1e-6)
    return notes

  assert (f"the rows of its {name} sum to 0.99 to 1.01, because they are rounded to 2 decimals: each is divided by its "
          "sum.") in notes_of(rounded)
  with pytest.raises(UserError, match=f"its {name} are percentages, because each row sums to 100: add --percent "):
    notes_of(100 * rounded)
  notes = notes_of(100 * rounded, percent=True)
  assert "sum to 0.99 to 1.01 of 100%, because they are rounded to 0 decimals" in notes and "taken for" not in notes
  with pytest.raises(UserError, match="its .* are no percentages: row 0, .* sums to 0.99 in place of 100"):
    notes_of(rounded, percent=True)


@pytest.mark.parametrize(("row", "is_read"), [
  ([0.33, 0.33, 0.33], True), ([0.33, 0.33, 0.32], False), ([0.34, 0.34, 0.34], False), ([0.4, 0.4, 0.3], True),
  ([0.4, 0.4, 0.4], False), ([0.333, 0.333, 0.333], True), ([0.33, 0.33, 0.325], False), ([0.0, 0.0, 0.0], False),
  ([1.0, 1.0, 0.0], False), ([0.51, *[0.0] * 99], True), ([0.5, *[0.0] * 99], False),
  ([0.33331, 0.33331, 0.33153], True), ([0.33331, 0.33331, 0.33121], False)])  # Not rounded: at most 0.002 off.
def test_a_sum_may_be_off_by_half_a_unit_of_the_last_place_for_each_class(row, is_read, tmp_path):
  arrays = {"probs": np.array([row], np.float32), "labels": [0]}
  if is_read:
    expected = [np.array(row) / sum(row) if abs(sum(row) - 1) > 1.1e-3 else row]
    np.testing.assert_allclose(load(tmp_path, arrays)[0].probs, expected, rtol=1e-6)
  else:
    with pytest.raises(UserError, match="its probs are no probabilities: row 0, .* sums to .* in place of 1"):
      load(tmp_path, arrays)


def test_one_column_of_percentages_needs_the_option(tmp_path):
  arrays = {"probs": np.array([[10.0], [99.5]]), "labels": [0, 1]}
  with pytest.raises(UserError, match=r"from 10 to 99.5, and must be in .*; if they are percentages, add --percent"):
    load(tmp_path, arrays)
  np.testing.assert_allclose(load(tmp_path, arrays, percent=True)[0].probs, [[0.9, 0.1], [0.005, 0.995]])
  with pytest.raises(UserError, match="its probs are percentages by --percent: leave out --logits"):
    load(tmp_path, arrays, percent=True, logits=True)
  # Logits that sum to 100 by chance can still be read.
  loaded, _ = load(tmp_path, {"logits": np.array([[40.0, 60.0]]), "labels": [1]}, logits=True)
  np.testing.assert_array_equal(loaded.logits, [[40, 60]])


def test_pickles_are_refused_with_the_line_that_converts_them(tmp_path):
  path = tmp_path / "p.pkl"
  path.write_bytes(pickle.dumps({"logits": LOGITS, "labels": LABELS}))
  with pytest.raises(UserError, match="is a pickle, which is not read because it could run code.*convert it: "):
    evaluation.load(path)
  path.rename(tmp_path / "p.bin")
  with pytest.raises(UserError, match="is a pickle, which is not read"):
    evaluation.load(tmp_path / "p.bin")


def test_large_arrays_are_mapped_and_checked(tmp_path, monkeypatch):
  monkeypatch.setattr(files, "MAPPED", 1)
  np.savez(tmp_path / "p.npz", logits=np.asfortranarray(LOGITS), labels=LABELS, train_counts=np.array([9, 5, 1]))
  loaded = evaluation.load(tmp_path / "p.npz")
  assert isinstance(loaded.logits, np.memmap)
  assert_same(loaded)
  np.testing.assert_array_equal(loaded.train_counts, [9, 5, 1])
  files.release(loaded.logits)  # What is read again is the same.
  assert_same(loaded)
  np.savez_compressed(tmp_path / "c.npz", logits=LOGITS, labels=LABELS)
  assert not isinstance(evaluation.load(tmp_path / "c.npz").logits, np.memmap)
  content = bytearray((tmp_path / "p.npz").read_bytes())
  content[content.index(LOGITS.tobytes("F")) + 20] ^= 1  # One wrong bit, which the checksum notices.
  (tmp_path / "p.npz").write_bytes(content)
  with pytest.raises(UserError, match="cannot be read"):
    evaluation.load(tmp_path / "p.npz")
