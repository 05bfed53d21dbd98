"""Predictions of other frameworks: formats, names and kinds of arrays, and one sentence for what cannot be read."""

import json
import pickle
import random
import re

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system import capacity, files
from calib_jax._system.errors import UserError

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


def test_one_column_says_which_class_is_positive_and_may_name_it(tmp_path):
  odds, labels = LOGITS[:, 0], np.where(LABELS > 0, "yes", "no")
  probs = 1 / (1 + np.exp(-odds))

  def loaded(columns, **options):
    notes = []
    return evaluation.load(_written(tmp_path / "p.csv", columns), say=notes.append, **options), " ".join(notes)

  numbers = LABELS.clip(0, 1)
  for column, names, wanted in (("prob_yes", labels, ("no", "yes")), ("prob_yes", numbers, ("not yes", "yes")),
                                ("prob_1", numbers, None), ("prob", numbers, None)):
    part, notes = loaded([(column, probs), ("label", names)])
    np.testing.assert_array_equal(part.labels, LABELS > 0)
    np.testing.assert_allclose(part.logits[:, 1] - part.logits[:, 0], odds, atol=1e-5)
    assert part.classes == wanted and f"is of class {wanted[1] if wanted else 1}, the positive one" in notes
  with pytest.raises(UserError, match="column is of 'yes', and its labels are also maybe, no: a binary problem"):
    loaded([("prob_yes", probs), ("label", np.where(LABELS == 2, "maybe", labels))])
  with pytest.raises(UserError, match="its labels are text.* or name the column by the positive one, as prob_yes"):
    loaded([("prob", probs), ("label", labels)])
  # Numbers in [0, 1] may be log-odds, which has to be said by the name or by the option.
  for name, options in (("scores", {}), ("scores", {"logits": True}), ("logit", {})):
    part, _ = loaded([(name, probs), ("label", numbers)], **options)
    shown = part.logits[:, 1] - part.logits[:, 0]
    np.testing.assert_allclose(shown, probs if options or name == "logit" else odds, atol=1e-5)
  with pytest.raises(UserError, match="its prob are probabilities by their name: leave out --logits"):
    loaded([("prob", probs), ("label", numbers)], logits=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_of_classes_may_stand_in_a_column(suffix, tmp_path):
  columns = [("label", LABELS), *((f"logit_{k}", LOGITS[:, k]) for k in range(3)), ("class_name", NAMES[LABELS])]
  assert evaluation.load(_written(tmp_path / f"p.{suffix}", columns)).classes == tuple(NAMES)
  columns[-1] = ("class_name", NAMES[LABELS[::-1]])
  columns[0] = ("label", LABELS % 2)
  with pytest.raises(UserError, match="must have one name for each label, an integer, and no name twice"):
    evaluation.load(_written(tmp_path / f"p.{suffix}", columns))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_each_label_of_a_multi_label_file_is_a_binary_problem(suffix, tmp_path):
  labels = (LOGITS + RNG.normal(size=LOGITS.shape) > 0).astype(int)
  if suffix == "npz":
    np.savez(tmp_path / "p.npz", logits=LOGITS, labels=labels, classes=NAMES, patient=np.arange(12) // 2)
  else:  # The columns of labels are found by their endings, in any order.
    scores = {"csv": "y_score", "parquet": "logit"}[suffix]
    _written(tmp_path / f"p.{suffix}", [*((f"label_{NAMES[k]}", labels[:, k]) for k in (2, 0, 1)), *(
      (f"{scores}_{name}", LOGITS[:, k]) for k, name in enumerate(NAMES)), ("patient", np.arange(12) // 2)])
  parts = evaluation.load_labels(tmp_path / f"p.{suffix}", groups="patient")
  assert list(parts) == ["", *NAMES]
  pooled = parts[""]
  np.testing.assert_allclose(pooled.logits, np.stack([np.zeros(36), LOGITS.ravel()], axis=1), rtol=1e-5)
  np.testing.assert_array_equal(pooled.labels, labels.ravel())
  np.testing.assert_array_equal(pooled.groups, np.repeat(np.arange(6), 6))
  for k, name in enumerate(NAMES):
    np.testing.assert_allclose(parts[name].logits[:, 1], LOGITS[:, k], rtol=1e-5)
    np.testing.assert_array_equal(parts[name].labels, labels[:, k])
    assert parts[name].classes == (f"not {name}", name)


def test_multi_label_files_that_do_not_fit_are_refused(tmp_path):
  np.savez(tmp_path / "p.npz", probs=PROBS, labels=LABELS)
  with pytest.raises(UserError, match=r"have probs \[N, L\] and labels \[N, L\] of 0 and 1: got float32 of shape"):
    evaluation.load_labels(tmp_path / "p.npz")
  np.savez(tmp_path / "p.npz", probs=PROBS, labels=np.ones((12, 3), int))
  with pytest.raises(UserError, match="must be one-hot: .* If a row can have several labels, say --task=multilabel"):
    evaluation.load(tmp_path / "p.npz")
  path = _written(tmp_path / "p.csv", [("prob_a", PROBS[:, 0]), ("prob_b", PROBS[:, 1]), ("label_a", LABELS % 2)])
  with pytest.raises(UserError, match="a column of labels for each of prob_a, prob_b, .*: it has label_a"):
    evaluation.load_labels(path)


@pytest.mark.parametrize(("arrays", "note", "logits"), [
  ({"predictions": PROBS, "targets": LABELS}, "predictions are taken for probabilities, because each row sums", None),
  ({"scores": LOGITS, "y_true": LABELS}, "scores are taken for logits, because they are no probabilities", LOGITS),
  ({"logits": PROBS, "labels": LABELS}, "logits are probabilities .* so their logarithms are used", None),
  ({"probs": PROBS, "logits": LOGITS, "labels": LABELS}, "holds logits and probs: logits are used", LOGITS),
  ({"logits": LOGITS, "labels": LABELS, "weight": np.ones(12)}, r"its weights \(weight\) are not used", LOGITS),
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
  path = tmp_path / "p.csv"
  path.write_text("label,logit_0,logit_1,patient\n" + "0,1,2,01\n0,1,2,1\n")  # Texts, though both are integers.
  assert len(set(evaluation.load(path, groups="patient").groups)) == 2
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


def _written(path, columns):
  """Writes columns, given as pairs because names may repeat, by the ending of the path."""
  names, values = zip(*columns, strict=True)
  if path.suffix in (".csv", ".tsv"):
    separator = {".csv": ",", ".tsv": "\t"}[path.suffix]
    lines = [separator.join(names), *(separator.join(map(str, row)) for row in zip(*values, strict=True))]
    path.write_text("\n".join(lines), encoding="utf-8")
  elif path.suffix == ".jsonl":
    rows = zip(*(np.asarray(column).tolist() for column in values), strict=True)
    path.write_text("\n\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
  elif path.suffix == ".npz":
    np.savez(path, **dict(columns))
  else:
    values = [column.tolist() if np.ndim(column) > 1 else column for column in values]
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_arrays(list(map(pyarrow.array, values)), list(names)), path)
  return path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("scores", "labels", "message"), [
  ("logit_0 logit_1 logit_1", "label", "columns 'logit_1' and 'logit_1' for one class"),
  ("logit_0 logit_1 logit_01", "label", "columns 'logit_1' and 'logit_01' for one class"),
  ("logit_0 logit_1 Logit_0", "label", "columns 'logit_0' and 'Logit_0' for one class"),
  ("logit_a logit_b logit.a", "label", "columns 'logit_a' and 'logit.a' for one class"),
  ("logit_0 logit_2 logit_5", "label", "numbered from 0 without gaps; they are logit_0, logit_2, logit_5"),
  ("logit_2 logit_3 logit_4", "label", "numbered from 0 without gaps; they are logit_2"),
  ("logit_0 logit_1 logit", "label", "not of one kind, such as logit, logit_0"),
  ("logit_0 logit_1 logit_max", "label", "not of one kind, such as logit_max, logit_0"),
  ("prob_0", "label", "has one column of scores, prob_0: one column is of class 1, such as prob_1"),
  ("logit_0 logit_1 logit_2", "label Label", "holds label and Label, which differ"),
  ("logit_0 logit_1 logit_2", "label target", "holds label and target, which differ"),
  ("logit_0 logit_1 logit_2", "label label", "has 2 columns called 'label'"),
  ("logit_1 logit_2 logit_3", "label", r"numbered from 1 \('logit_1' to 'logit_3'\), and its labels go from 0 to 2"),
])
def test_ambiguous_columns_are_refused(suffix, scores, labels, message, tmp_path):
  columns = [*zip(scores.split(), LOGITS.T, strict=False),
             *((name, (LABELS + i) % 3) for i, name in enumerate(labels.split()))]
  with pytest.raises(UserError, match=message):
    evaluation.load(_written(tmp_path / f"p.{suffix}", columns))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_numbered_from_1_have_labels_from_1_and_it_is_said(suffix, tmp_path):
  columns = [("problem", LABELS), ("y", LABELS + 1), ("label", LABELS + 1), *(
    (f"logit_{k + 1}", LOGITS[:, k]) for k in (2, 0, 1))]
  notes = []
  loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", columns), say=notes.append)
  np.testing.assert_allclose(loaded.logits, LOGITS, rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS)  # Two columns of labels that are equal are one.
  assert loaded.classes == ("1", "2", "3")
  assert len(notes) == 1 and "numbered from 1, so its labels are too: label 1 is logit_1" in notes[0]


def test_classes_are_those_of_the_scores_that_are_used(tmp_path):
  columns = [("label", NAMES[LABELS]), *((f"logit_{name}", x) for name, x in zip(NAMES, LOGITS.T, strict=True)), *(
    (f"prob_{name}", x) for name, x in zip(NAMES[::-1], PROBS.T[::-1], strict=True))]
  loaded = evaluation.load(_written(tmp_path / "p.csv", columns))
  assert loaded.classes == tuple(NAMES)
  np.testing.assert_array_equal(loaded.labels, LABELS)


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
    _loaded(tmp_path, logits=LOGITS, **arrays)


def test_equal_labels_under_two_names_are_one(tmp_path):
  loaded, notes = _loaded(tmp_path, logits=LOGITS, labels=LABELS, y=LABELS.astype(np.uint8), probs=PROBS)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  assert "holds logits and probs: logits are used" in notes


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_numbers_of_the_other_byte_order_are_read(dtype, tmp_path):
  for name, scores in (("logits", LOGITS), ("probs", PROBS)):
    arrays = {name: scores.astype(dtype), "labels": LABELS.astype(">i4"), "features": LOGITS.astype(dtype)}
    expected, _ = _loaded(tmp_path, **{key: x.astype(x.dtype.newbyteorder("=")) for key, x in arrays.items()})
    loaded, _ = _loaded(tmp_path, **arrays)
    for found, wanted in zip(loaded, expected, strict=True):
      np.testing.assert_array_equal(found, wanted)
      assert not isinstance(found, np.ndarray) or found.dtype.isnative
  for name, x in (("z", LOGITS.astype(dtype)), ("y", LABELS.astype(">u2"))):
    np.save(tmp_path / f"{name}.npy", x)
  np.testing.assert_array_equal(evaluation.load(f"{tmp_path}/z.npy,{tmp_path}/y.npy").logits,
                                LOGITS.astype(dtype).astype(np.float32))


def test_parquet_is_decoded_only_if_it_is_small_and_whole(tmp_path, monkeypatch):
  pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
  from pyarrow import parquet

  def write(**columns):
    parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
    return tmp_path / "p.parquet"

  def refused(message, **columns):
    with pytest.raises(UserError, match=message):
      evaluation.load(write(**columns))

  labels = pyarrow.array(LABELS)
  refused("column 'label' has 1 missing values", label=pyarrow.array([None, *LABELS[1:]]), logits=list(LOGITS))
  refused("column 'label' has 1 missing values", label=pyarrow.array([None, *NAMES[LABELS[1:]]]), logits=list(LOGITS))
  refused("column 'logits' has 1 missing values", label=labels, logits=[None, *LOGITS[1:]])
  refused("column 'logits' has 1 missing values", label=labels, logits=[[None, 1.0, 2.0], *map(list, LOGITS[1:])])
  refused("lists of the column 'logits' must all have one length", label=labels, logits=[[1.0], *map(list, LOGITS[1:])])
  refused("column 'logits' must hold numbers or texts", label=labels, logits=[{"a": 1.0}] * 12)
  refused("labels must be in .* 18446744073709551615", logits=list(LOGITS),
          label=pyarrow.array([2**64 - 1] * 12, pyarrow.uint64()))
  half = evaluation.load(write(label=labels.cast("uint8"), logits=list(LOGITS.astype(np.float16))))
  np.testing.assert_array_equal(half.logits, LOGITS.astype(np.float16))
  many, texts = np.zeros(10**5), ["x" * 500] * 10**5  # A few bytes in the file, and 0.8 to 200 MB decoded.
  monkeypatch.setattr(capacity, "memory", lambda: 9 * 10**6)
  for columns, message in (({"label": many.astype(int), "logit_0": many, "logit_1": many}, "would take 4.8 MB"),
                           ({"label": texts, "logit": many}, "label would take 200 MB")):
    refused(message, **columns)
    assert (tmp_path / "p.parquet").stat().st_size < 20_000
  monkeypatch.setattr(pyarrow, "__version__", "14.0.0")
  refused("not read with pyarrow 14.0.0, because a file could run code", label=labels, logits=list(LOGITS))


def test_parquet_with_a_damaged_footer_does_not_end_the_process(tmp_path):
  """Histograms of a wrong size, as in some of these files, end the process if pyarrow 26 reads them as metadata."""
  pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")
  from pyarrow import parquet

  path = tmp_path / "p.parquet"
  parquet.write_table(pyarrow.table({"label": LABELS, "logits": list(LOGITS)}), path)
  content, reasons = path.read_bytes(), []
  for place in range(parquet.ParquetFile(path).metadata.row_group(0).total_byte_size, len(content)):
    path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1:])
    try:
      evaluation.load(path)
    except UserError as error:
      reasons.append(str(error))
  assert len(reasons) > 100


TABLES = ["csv", "tsv", "jsonl", "parquet"]


@pytest.mark.parametrize("suffix", TABLES)
def test_every_table_holds_the_same_predictions(suffix, tmp_path):
  columns = [("label", NAMES[LABELS]), *((f"logit_{name}", x) for name, x in zip(NAMES, LOGITS.T, strict=True)),
             ("patient", np.arange(12) // 4)]
  loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", columns), groups="patient")
  np.testing.assert_allclose(loaded.logits, LOGITS, rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  np.testing.assert_array_equal(loaded.groups, np.arange(12) // 4)
  assert loaded.classes == tuple(NAMES)


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
@pytest.mark.parametrize("labels", [LABELS.astype(np.float64), LABELS.astype(np.float32), LABELS.astype("U1")])
def test_labels_that_are_whole_numbers_are_integers_in_every_file(suffix, labels, tmp_path):
  scores = [("logits", LOGITS)] if suffix == "npz" else [(f"logit_{k + 1}", LOGITS[:, k]) for k in range(3)]
  shift = scores[0][0] == "logit_1"  # Columns that are numbered from 1 have labels from 1.
  shifted = (labels.astype(int) + 1).astype(labels.dtype) if shift else labels
  loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", [*scores, ("label_ids", shifted)]))
  np.testing.assert_array_equal(loaded.labels, LABELS)
  assert loaded.labels.dtype == np.int32


@pytest.mark.parametrize("suffix", TABLES)
def test_true_and_false_are_labels_of_two_classes_and_may_be_their_names(suffix, tmp_path):
  true, p = LABELS > 0, PROBS[:, 0]
  for names, classes in ((["prob"], None), (["prob_yes"], ("not yes", "yes")), (["prob_True", "prob_False"],
                                                                                ("True", "False"))):
    columns = [("label", true), *zip(names, (p, 1 - p), strict=False)]
    loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", columns))
    np.testing.assert_array_equal(loaded.labels, ~true if len(names) == 2 else true)
    assert loaded.classes == classes


@pytest.mark.parametrize("suffix", TABLES)
def test_numbers_that_are_names_of_classes_are_no_places(suffix, tmp_path):
  """Ratings, whose columns are in any order."""
  ratings = np.array([2.0, 1.0, 1.5])
  for names, labels in ((ratings, ratings[LABELS]), (ratings[:2], ratings[LABELS % 2])):
    columns = [("label", labels), *((f"logit_{name}", x) for name, x in zip(names, LOGITS.T, strict=False))]
    loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", columns))
    np.testing.assert_array_equal(loaded.labels, LABELS % len(names))
    assert loaded.classes == tuple(map(str, names))


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
def test_rows_of_a_label_that_is_not_scored_are_left_out_whatever_they_hold(suffix, tmp_path):
  labels = np.where(np.arange(12) < 4, -100, LABELS + 1)  # Labels from 1, as the columns are.
  logits = np.where(labels[:, None] < 0, -np.inf if suffix != "csv" else np.nan, LOGITS)
  scores = [("logits", logits)] if suffix == "npz" else [(f"logit_{k + 1}", logits[:, k]) for k in range(3)]
  labels = labels - (labels > 0) if suffix == "npz" else labels
  path = _written(tmp_path / f"p.{suffix}", [*scores, ("label", labels), ("patient", np.arange(12) // 2)])
  notes = []
  loaded = evaluation.load(path, groups="patient", ignore_label=-100, say=notes.append)
  np.testing.assert_allclose(loaded.logits, LOGITS[4:], rtol=1e-6)
  np.testing.assert_array_equal(loaded.labels, LABELS[4:])
  np.testing.assert_array_equal(loaded.groups, np.arange(8) // 2)
  assert f"{path}: 4 of its 12 rows have the label -100 and are left out." in notes
  with pytest.raises(UserError, match="all labels are 0, which is to be ignored, so that no row is left"):
    evaluation.load(_written(tmp_path / f"p.{suffix}", [("prob", PROBS[:, 0]), ("label", 0 * LABELS)]), ignore_label=0)


@pytest.mark.parametrize("suffix", ["npz", "jsonl", "parquet"])
def test_sequences_are_rows_in_groups_unless_others_are_named(suffix, tmp_path):
  arrays = [("predictions", LOGITS.reshape(4, 3, 3)), ("label_ids", LABELS.reshape(4, 3)),
            ("user", np.array([7, 7, 1, 1]))]
  path, notes = _written(tmp_path / f"p.{suffix}", arrays), []
  loaded = evaluation.load(path, say=notes.append)
  np.testing.assert_array_equal(loaded.logits, LOGITS)
  np.testing.assert_array_equal(loaded.labels, LABELS)
  np.testing.assert_array_equal(loaded.groups, np.arange(12) // 3)
  assert "its predictions of shape (4, 3, 3) are read as 12 rows; the rows of each of its 4 sequences" in notes[0]
  named = evaluation.load(path, groups="user", say=notes.append)
  np.testing.assert_array_equal(named.groups, np.arange(12) < 6)
  assert any(note.endswith("of shape (4, 3, 3) are read as 12 rows.") for note in notes)


def test_images_are_rows_and_one_row_each_is_no_group(tmp_path):
  for shape in ((2, 2, 3, 3), (12, 1, 3)):
    loaded, notes = _loaded(tmp_path, logits=LOGITS.reshape(shape), labels=LABELS.reshape(shape[:-1]),
                            features=np.arange(24.0).reshape(*shape[:-1], 2))
    np.testing.assert_array_equal(loaded.logits, LOGITS)
    np.testing.assert_array_equal(loaded.features, np.arange(24).reshape(12, 2))
    assert f"are read as 12 rows{'; the rows of each of its 2' if shape[0] == 2 else '.'}" in notes
    assert loaded.groups is None if shape[0] == 12 else loaded.groups.tolist() == [0] * 6 + [1] * 6


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
def test_a_logit_of_minus_infinity_is_a_class_that_the_row_does_not_have(suffix, tmp_path):
  logits = np.where(np.arange(3) == (LABELS[:, None] + 1) % 3, -np.inf, LOGITS)
  scores = [("log_probs", logits)] if suffix == "npz" else [(f"logit_{k}", logits[:, k]) for k in range(3)]
  loaded = evaluation.load(_written(tmp_path / f"p.{suffix}", [*scores, ("label", LABELS)]))
  np.testing.assert_allclose(loaded.logits, logits, rtol=1e-6)
  np.savez(tmp_path / "far.npz", logits=np.where(np.isinf(logits), -1e300, logits.astype(np.float64)), labels=LABELS)
  np.testing.assert_allclose(evaluation.load(tmp_path / "far.npz").logits, logits, rtol=1e-6)
  np.savez(tmp_path / "ood.npz", logits=logits, labels=(LABELS + 1) % 3, kind="out_of_distribution")
  assert evaluation.load(tmp_path / "ood.npz").kind == "out_of_distribution"  # Its labels have no meaning.


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
@pytest.mark.parametrize("name", ["prob", "logit", "scores"])
def test_rounded_probabilities_and_percentages_are_divided_by_their_sums(suffix, name, tmp_path):
  rounded = np.array([[0.33, 0.33, 0.33], [0.67, 0.17, 0.17], [0.5, 0.25, 0.25], [0.34, 0.33, 0.34]])
  expected = rounded / rounded.sum(1, keepdims=True)

  def load(scores, **options):
    notes, scores = [], [(name, scores)] if suffix == "npz" else [(f"{name}_{k}", x) for k, x in enumerate(scores.T)]
    path = _written(tmp_path / f"p.{suffix}", [*scores, ("label", LABELS[:4])])
    loaded = evaluation.load(path, say=notes.append, **options)
    np.testing.assert_allclose(loaded.probs, expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(loaded.logits), expected, rtol=1e-6)
    return " ".join(notes)

  assert (f"the rows of its {name} sum to 0.99 to 1.01, because they are rounded to 2 decimals: each is divided by its "
          "sum.") in load(rounded)
  with pytest.raises(UserError, match=f"its {name} are percentages, because each row sums to 100: add --percent "):
    load(100 * rounded)
  said = load(100 * rounded, percent=True)
  assert "sum to 0.99 to 1.01 of 100%, because they are rounded to 0 decimals" in said and "taken for" not in said
  with pytest.raises(UserError, match="its .* are no percentages: row 0, .* sums to 0.99 in place of 100"):
    load(rounded, percent=True)


@pytest.mark.parametrize(("row", "is_read"), [
  ([0.33, 0.33, 0.33], True), ([0.33, 0.33, 0.32], False), ([0.34, 0.34, 0.34], False), ([0.4, 0.4, 0.3], True),
  ([0.4, 0.4, 0.4], False), ([0.333, 0.333, 0.333], True), ([0.33, 0.33, 0.325], False), ([0.0, 0.0, 0.0], False),
  ([1.0, 1.0, 0.0], False), ([0.51, *[0.0] * 99], True), ([0.5, *[0.0] * 99], False),
  ([0.33331, 0.33331, 0.33153], True), ([0.33331, 0.33331, 0.33121], False)])  # Not rounded: at most 0.002 off.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_may_be_off_by_half_a_unit_of_the_last_place_for_each_class(row, is_read, dtype, tmp_path):
  np.savez(tmp_path / "p.npz", probs=np.array([row], dtype), labels=[0])
  if is_read:
    probs = evaluation.load(tmp_path / "p.npz").probs
    np.testing.assert_allclose(probs, [np.array(row) / sum(row) if abs(sum(row) - 1) > 1.1e-3 else row], rtol=1e-6)
  else:
    with pytest.raises(UserError, match="its probs are no probabilities: row 0, .* sums to .* in place of 1"):
      evaluation.load(tmp_path / "p.npz")


def test_one_column_of_percentages_needs_the_option(tmp_path):
  percent, labels = np.array([[10.0], [99.5]]), [0, 1]
  with pytest.raises(UserError, match=r"from 10 to 99.5, and must be in .*; if they are percentages, add --percent"):
    _loaded(tmp_path, probs=percent, labels=labels)
  np.savez(tmp_path / "p.npz", probs=percent, labels=labels)
  np.testing.assert_allclose(evaluation.load(tmp_path / "p.npz", percent=True).probs, [[0.9, 0.1], [0.005, 0.995]])
  with pytest.raises(UserError, match="its probs are percentages by --percent: leave out --logits"):
    evaluation.load(tmp_path / "p.npz", percent=True, logits=True)
  # Logits that sum to 100 by chance can still be read.
  np.savez(tmp_path / "p.npz", logits=np.array([[40.0, 60.0]]), labels=[1])
  np.testing.assert_array_equal(evaluation.load(tmp_path / "p.npz", logits=True).logits, [[40, 60]])


def test_columns_that_are_class_numbers_are_scores_and_it_is_said(tmp_path):
  for scores, kind in ((PROBS, "probabilities"), (LOGITS, "logits")):
    path, notes = _written(tmp_path / "p.csv", [("2", scores[:, 2]), ("0", scores[:, 0]), ("1", scores[:, 1]),
                                                ("label", LABELS)]), []
    loaded = evaluation.load(path, say=notes.append)
    np.testing.assert_allclose(loaded.logits, np.log(PROBS) if scores is PROBS else LOGITS, rtol=1e-5, atol=1e-6)
    assert "columns '2' to '1' are taken for the scores" in notes[0] and f"taken for {kind}" in notes[1]


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\n\n", '""\n', ", "])
def test_texts_of_csv_may_hold_line_breaks_commas_and_quotation_marks(break_, tmp_path):
  (tmp_path / "p.csv").write_bytes((
    f'text,prob_0,prob_1,label\n"good{break_}film",0.25,0.75,1\n5" wide,0.5,0.5,0\n').encode())
  loaded = evaluation.load(tmp_path / "p.csv")
  np.testing.assert_array_equal(loaded.probs, [[0.25, 0.75], [0.5, 0.5]])
  np.testing.assert_array_equal(loaded.labels, [1, 0])


@pytest.mark.parametrize(("content", "message"), [
  ("", "it has no rows"), ("[1]", "line 1 cannot be read as JSON .it holds a list where"), ("{", "line 1 cannot be"),
  ('{"prob": 0.5, "label": 1, "label": 0}', "it has the key 'label' twice"),
  ('{"prob": 0.5, "label": 1}\n{"prob": 0.5}', "line 2 has no 'label': leave this row out"),
  ('{"prob": 0.5, "label": 1}\n{"prob": null, "label": 1}', "line 2 has no 'prob': leave"),
  ('{"probs": [0.5, 0.5], "label": 1}\n{"probs": [1], "label": 0}', "lists of 'probs' must all have one length"),
  ('{"probs": [[1], 2], "label": 1}', "cannot be read as JSON lines"),
  ('{"prob": 0.5, "label": 1}\n{"prob": 0.5, "label": "a"}', "'label' must hold numbers, or texts, in all rows"),
  ('{"prob": {"a": 1}, "label": 1}', "'prob' must hold numbers"), ('{"text": "a"}', "must have a header with a column"),
])
def test_json_lines_that_are_no_rows_are_refused(content, message, tmp_path, monkeypatch):
  (tmp_path / "p.jsonl").write_text(content)
  with pytest.raises(UserError, match=message):
    evaluation.load(tmp_path / "p.jsonl")
  monkeypatch.setattr(capacity, "memory", lambda: 10)
  (tmp_path / "p.jsonl").write_text('{"prob": 0.5, "label": 1}')
  with pytest.raises(UserError, match="p.jsonl: 1 of its rows would take 216 bytes of memory"):
    evaluation.load(tmp_path / "p.jsonl")


@pytest.mark.parametrize("name", ["p.txt", "p.json", "p", "p.xlsx"])
def test_files_of_other_endings_are_refused_unless_they_are_npz(name, tmp_path):
  (tmp_path / name).write_bytes(b"PK" if name == "p.xlsx" else b"prob,label\n0.5,1\n")
  with pytest.raises(UserError, match=r"files of this ending are not read, but .npz, .* \.csv, \.tsv, \.jsonl"):
    evaluation.load(tmp_path / name)
  if name == "p":
    np.savez(tmp_path / "q.npz", logits=LOGITS, labels=LABELS)
    (tmp_path / "q.npz").rename(tmp_path / name)
    np.testing.assert_array_equal(evaluation.load(tmp_path / name).logits, LOGITS)


def test_csv_is_read_only_if_it_is_small_and_every_row_is_whole(tmp_path, monkeypatch):
  path = tmp_path / "p.csv"

  def refused(content, message):
    path.write_text(f"label,logit_0,logit_1\n{content}")
    with pytest.raises(UserError, match=message):
      evaluation.load(path)

  refused("", "it has no rows")
  refused("0,1,2\n1,0,5,1\n", "line 3 has 4 fields and the header has 3")  # Such as a comma within a number.
  refused('0,1,2\n"1,1,2\n0,1,2\n', r"line 3: unexpected end of data; is a quotation mark not closed\?")
  refused('0,1,2\n"1' + ",1,2\n" * 30_000, r"line 3: field larger than field limit \(131072\); is a quotation mark not")
  refused('0,"1,5",2\n', "a number is missing, or has a comma in place of a point")
  refused("0,1,2\n0,1,2\nnan,1,2\n", "the first is row 2, counted from 0: 'nan'")
  monkeypatch.setattr("calib_jax.predictions.text_files.LINE", 100)
  refused("0,1,2\n0,1," + " " * 100 + "2\n", "line 3 is longer than 100 characters")
  monkeypatch.undo()
  monkeypatch.setattr(capacity, "memory", lambda: 10**6)
  monkeypatch.setattr("calib_jax.predictions.text_files.CHECKED", 0)
  refused("0,1,2\n" * 6000, "p.csv: 4,588 of its rows would take 500 KB of memory")  # 100 + 1 + 2 * 4 bytes a row.
  refused("0,1,2\n" * 4000 + "x" * 100 + ",1,2\n", "p.csv would take 1.6 MB")


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
  ("p.csv", b"label;logit_0;logit_1\n0;1,5;2\n", "its columns are separated by ';': separate them by commas"),
  ("p.csv", b"label\tlogit_0\tlogit_1\n0\t1\t2\n", r"its columns are separated by '\\t': separate them by commas"),
  ("p.csv", b"label,logit_0,logit_1\n0.0,1,2\n0.5,1,2\n", "such as 2: that of row 1, counted from 0, is '0.5'"),
  ("p.csv", b"label,logit_0,logit_1\n0.0,1,2\n,1,2\n1.0,1,2\n", "1 of the 3 labels are no integers, .* is row 1, .*''"),
  ("p.csv", b"label,logit_0,logit_1\n0,a,b\n", "cannot be read as CSV"),
  ("p.csv", b"label,logit_0,logit_1\n0,1,2\n0,1\n", "cannot be read as CSV"),
  ("p.csv", b"label,logit_0,logit_1\n0,1,2\n0,nan,2\n",
   r"1 of the 2 rows of its logit hold NaN, \+inf, or -inf in every class; the first is row 1, counted from 0: "),
  ("p.csv", b"label,logit_cat,logit_dog\n0,1,2\n,1,2\n1,2,3\n",
   "1 of the 3 labels are no integers, as the others are; the first is row 1, counted from 0: ''"),
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
