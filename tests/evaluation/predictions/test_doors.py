"""Files as tools and people write them: read where there is one reading, and else one sentence with the way out."""

import gzip
import json
import zipfile

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate as command
from tests.evaluation.predictions.data import LABELS, LOGITS, NAMES, PROBS, assert_same, columns_of, load, written

RNG = np.random.default_rng(1)
P = np.round(RNG.uniform(size=40), 4)
Y = (RNG.uniform(size=40) < P).astype(int)


@pytest.mark.parametrize("key", ["classes", "choices", "options", "class_names"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_of_options_name_the_classes(key, suffix, tmp_path):
  columns = {"logits": LOGITS, "label": NAMES[LABELS], key: np.tile(NAMES, (12, 1))}
  assert_same(load(tmp_path, columns, suffix)[0], classes=NAMES)
  part, _ = load(tmp_path, columns | {"label": LABELS}, suffix)
  assert_same(part, classes=NAMES)


def _rows(columns):
  return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _by_index(columns):
  return {name: {str(9 - i): x for i, x in enumerate(column)} for name, column in columns.items()}


@pytest.mark.parametrize("form", [
  _rows, lambda columns: {"model": "m", "labels": ["w", "x"], "results": _rows(columns)}, lambda columns: columns,
  _by_index, lambda columns: {str(i): row for i, row in enumerate(_rows(columns))}])
def test_a_file_of_json_holds_rows_alone_under_a_key_or_by_id_or_columns(form, tmp_path):
  (tmp_path / "x.json").write_text(json.dumps(form({"logits": LOGITS.tolist(), "label": LABELS.tolist()})))
  assert_same(evaluation.load(tmp_path / "x.json"))
  by_name = [dict(zip(NAMES, row, strict=True)) for row in LOGITS.tolist()]
  (tmp_path / "x.json").write_text(json.dumps(form({"logits": by_name, "label": NAMES[LABELS].tolist()})))
  assert_same(evaluation.load(tmp_path / "x.json"), classes=NAMES)


def test_answers_by_id_are_no_columns_whatever_they_are_called(tmp_path):
  rows = [{"logits": z.tolist(), "label": int(y)} for z, y in zip(LOGITS[:2], LABELS[:2], strict=True)]
  (tmp_path / "x.json").write_text(json.dumps(dict(zip(("y", "score"), rows, strict=True))))
  assert_same(evaluation.load(tmp_path / "x.json"), LOGITS[:2], LABELS[:2])


def test_columns_of_json_may_have_one_list_of_classes(tmp_path):
  columns = {"logits": LOGITS.tolist(), "classes": NAMES.tolist(), "config": {"lr": 0.1}, "epoch": 3}
  for labels in (LABELS, NAMES[LABELS]):
    (tmp_path / "x.json").write_text(json.dumps(columns | {"y": labels.tolist()}))
    assert_same(evaluation.load(tmp_path / "x.json"), classes=NAMES)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_options_that_differ_by_row_give_labels_their_places(suffix, tmp_path):
  options = np.array([[f"{row}{k}" for k in "abc"] for row in range(12)])
  columns = {"logits": LOGITS, "label": options[np.arange(12), LABELS], "choices": options}
  part, notes = load(tmp_path, columns, suffix)
  assert_same(part)
  assert "the options of its rows differ, so that each label is a place among those of its own row" in notes
  with pytest.raises(UserError, match="the label of row 3, counted from 0, is '9a', and must be one of the row's own"):
    load(tmp_path, columns | {"label": np.where(np.arange(12) == 3, "9a", columns["label"])}, suffix)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_that_have_the_classes_in_their_own_order_are_joined_by_name(suffix, tmp_path):
  """A label is a name, a place in its own row, or a 1 there; numbers that may be either are refused."""
  order = np.array([[0, 1, 2], *RNG.permuted(np.tile(np.arange(3), (11, 1)), axis=1)])
  place = (order == LABELS[:, None]).argmax(1)

  def columns(labels, names=NAMES):
    return {"logits": np.take_along_axis(LOGITS, order, 1), "label": labels, "choices": names[order]}

  for labels in (NAMES[LABELS], place, place.astype(str), place.astype(float), np.eye(3, dtype=int)[place],
                 place[:, None]):
    part, notes = load(tmp_path, columns(labels), suffix)
    assert_same(part, classes=NAMES)
    assert "its rows have their classes in several orders, and are joined by name" in notes
  numbers = np.array(["1", "2", "3"])
  for labels in (numbers[LABELS], place):
    assert_same(load(tmp_path, columns(labels, numbers), suffix)[0], classes=numbers)
  years = np.array(["2024", "2025", "2026"])
  assert_same(load(tmp_path, columns(years[LABELS].astype(int), years), suffix)[0], classes=years)
  with pytest.raises(UserError, match="'label' may be names of classes or places in each row"):
    load(tmp_path, columns(np.minimum(LABELS + 1, 2), numbers), suffix)
  with pytest.raises(UserError, match="no class is called '7', the label of row 0"):
    load(tmp_path, columns(np.where(np.arange(12) == 0, 7, place)), suffix)


def test_numbers_by_name_are_joined_by_name(tmp_path):
  """Whatever the order of the keys of a row; a key that a row lacks is a class that it does not have."""
  orders = [RNG.permutation(3) for _ in range(12)]
  rows = [{"logits": {NAMES[k]: float(z[k]) for k in order}, "label": str(NAMES[y])}
          for z, y, order in zip(LOGITS, LABELS, orders, strict=True)]
  names = list(rows[0]["logits"])
  order = [list(NAMES).index(name) for name in names]
  (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
  part = evaluation.load(tmp_path / "x.jsonl")
  assert_same(part, LOGITS[:, order], np.argsort(order)[LABELS], names)
  del rows[2]["logits"][str(NAMES[(LABELS[2] + 1) % 3])]
  (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
  part = evaluation.load(tmp_path / "x.jsonl")
  assert np.isneginf(part.logits).sum() == 1 and np.isneginf(part.logits[2]).sum() == 1
  rows[4]["logits"] = {"cat": "x", "dog": 1}
  (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
  with pytest.raises(UserError, match="row 4, counted from 0, must hold a number for 'cat': got 'x'"):
    evaluation.load(tmp_path / "x.jsonl")


@pytest.mark.parametrize(("columns", "tool"), [
  ([(".pred_class", NAMES[PROBS.argmax(1)]), *((f".pred_{name}", PROBS[:, k]) for k, name in enumerate(NAMES)),
    ("Class", NAMES[LABELS])], r"tidymodels' augment\(\)"),
  ([(".pred_class", NAMES[PROBS.argmax(1)]), *((f".pred_{name}", PROBS[:, k]) for k, name in enumerate(NAMES)),
    ("species", NAMES[LABELS])], r"tidymodels' augment\(\)"),
  ([("pred", NAMES[PROBS.argmax(1)]), ("obs", NAMES[LABELS]), *zip(NAMES, PROBS.T, strict=True),
    ("rowIndex", np.arange(12)), ("Resample", ["Fold1"] * 12)], "caret")])
def test_columns_of_r_are_read_by_their_classes(columns, tool, tmp_path):
  part, notes = load(tmp_path, columns, "csv")
  np.testing.assert_allclose(part.probs, PROBS, rtol=1e-5)
  assert [part.classes[k] for k in part.labels] == NAMES[LABELS].tolist() and part.classes == tuple(NAMES)
  assert "its columns are read as those of" in notes


@pytest.mark.parametrize("missing", ["NaN", "-1", "empty", "null"])
def test_labels_that_are_not_known_are_pairs_that_do_not_count(missing, tmp_path):
  labels = (LOGITS + RNG.normal(size=LOGITS.shape) > 0).astype(float)
  labels[::4, 1] = labels[5, 2] = np.nan
  known = ~np.isnan(labels)
  if missing == "empty":
    cells = [("label_" + name, ["" if np.isnan(x) else int(x) for x in column])
             for name, column in zip(NAMES, labels.T, strict=True)]
    path = written(tmp_path / "x.csv", [*columns_of("logit", LOGITS, NAMES), *cells])
  elif missing == "null":
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({f"logit_{n}": float(z) for n, z in zip(NAMES, row, strict=True)} | {
      f"label_{n}": None if np.isnan(y) else int(y) for n, y in zip(NAMES, own, strict=True)})
      for row, own in zip(LOGITS, labels, strict=True)))
  else:
    values = labels if missing == "NaN" else np.where(known, labels, -1).astype(int)
    path = written(tmp_path / "x.npz", {"logits": LOGITS, "labels": values, "classes": NAMES})
  notes = []
  parts = evaluation.load_labels(path, say=notes.append)
  pooled = parts[""]
  np.testing.assert_allclose(pooled.logits[:, 1], LOGITS[known], rtol=1e-5)
  np.testing.assert_array_equal(pooled.labels, labels[known])
  np.testing.assert_array_equal(pooled.groups, np.repeat(np.arange(12), known.sum(1)))
  for k, name in enumerate(NAMES):
    np.testing.assert_allclose(parts[name].logits[:, 1], LOGITS[known[:, k], k], rtol=1e-5)
    np.testing.assert_array_equal(parts[name].labels, labels[known[:, k], k])
  assert "4 of its 36 labels are missing" in " ".join(notes)


def test_labels_of_minus_one_have_their_own_advice(tmp_path):
  with pytest.raises(UserError, match=r"They are -1 and 1, as those of a support vector machine: save \(labels > 0\)"):
    load(tmp_path, {"scores": P - 0.5, "labels": 2 * Y - 1})
  with pytest.raises(UserError, match=r"labels are -1 and 1: if -1 says that a label is absent, save \(labels > 0\)"):
    evaluation.load_labels(written(tmp_path / "x.npz", {"logits": LOGITS, "labels": np.sign(LOGITS).astype(int)}))
  with pytest.raises(UserError, match="They are numbered from 1: save labels - 1"):
    load(tmp_path, {"prob": P, "label": Y + 1}, "csv")


@pytest.mark.parametrize(("arrays", "message"), [
  ({"probs": P.reshape(5, 4, 2), "labels": Y.reshape(5, 4, 2)}, r"as binary masks have, .* save probs\[..., None\]"),
  ({"logits": P.reshape(5, 1, 4, 2), "labels": Y.reshape(5, 1, 4, 2)},
   r"save numpy.moveaxis\(logits, 1, -1\) and labels\[:, 0\]"),
  ({"probs": P.reshape(5, 1, 4, 2), "labels": Y.reshape(5, 4, 2)}, r"save numpy.moveaxis\(probs, 1, -1\), and labels"),
  ({"predictions": (P > 0.5).astype(float), "labels": Y}, "are 0 or 1, as predicted classes are and probabilities are"),
  ({"prob": (P > 0.5).astype(float), "labels": Y}, "are 0 or 1, as predicted classes are and probabilities are not"),
  ({"probs": PROBS, "labels": PROBS[::-1]}, r"are distributions over the classes, .* save labels.argmax\(1\)"),
  ({"logitz": LOGITS, "labels": LABELS}, "For 'logitz': Did you mean 'logit'")])
def test_what_is_meant_otherwise_has_the_way_out(arrays, message, tmp_path):
  with pytest.raises(UserError, match=message):
    load(tmp_path, arrays)


def test_masks_with_an_axis_of_their_channel_are_read(tmp_path):
  part, _ = load(tmp_path, {"probs": P.reshape(5, 4, 2, 1), "labels": Y.reshape(5, 4, 2)})
  np.testing.assert_array_equal(part.labels, Y)
  np.testing.assert_allclose(part.probs[:, 1], P)


def test_kinds_of_files_that_are_not_read_are_named(tmp_path):
  text = "prob_é,prob_a,label\n0.2,0.8,a\n0.7,0.3,é\n"
  with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
    archive.writestr("x.csv", text)
  with gzip.open(tmp_path / "x.csv.gz", "wt", encoding="utf-8") as file:
    file.write(text)
  (tmp_path / "empty.csv").write_text("")
  for name, message in (("x.zip", "is a zip archive of x.csv: unpack it"), ("empty.csv", "is empty: it must have a"),
                        ("x.csv.gz", "compressed, as its ending says")):
    with pytest.raises(UserError, match=message):
      evaluation.load(tmp_path / name)
  for encoding in ("utf-16", "utf-16-le", "latin-1"):
    (tmp_path / "x.csv").write_text(text, encoding=encoding)
    with pytest.raises(UserError, match="is not UTF-8 text but perhaps UTF-16, .* save it as CSV UTF-8"):
      evaluation.load(tmp_path / "x.csv")
  (tmp_path / "x.csv").write_text(text, encoding="utf-8-sig")
  assert evaluation.load(tmp_path / "x.csv").classes == ("é", "a")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz"])
def test_a_name_that_is_nearly_one_of_the_file_is_named(suffix, tmp_path, capsys):
  columns = {"prob": P, "label": Y, "task": np.array(["a", "b"] * 20)}
  path = written(tmp_path / f"answers.{suffix}", columns)
  for option in (["--by", "tsk"], ["--groups", "taks"], ["--weights", "task1"]):
    assert command.main(["--test", str(path), *option]) == 2
    assert "Did you mean 'task'?" in capsys.readouterr().err
  assert command.main(["--test", str(path.with_stem("answer"))]) == 2
  assert f"Did you mean 'answers.{suffix}'?" in capsys.readouterr().err
