"""Files of predictions hold what numpy, csv, json and pyarrow read in them, or they are refused; a choice is said."""

import csv
import io
import json
import pathlib

from hypothesis import strategies as st
import numpy as np
import pyarrow
from pyarrow import parquet

from calib_jax import evaluation
from tests.hostile import files
from tests.hostile.judge import Answer, attacked, read

LOGITS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
LABELS, NAMES = np.arange(8) % 3, np.array(["a", "b", "c"])
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SOUND = {"logits": LOGITS, "labels": LABELS}
LABELLINGS = (
  LABELS, LABELS * 1.0, LABELS + 0.5, LABELS + 2**31, LABELS - 2, np.full(8, 2**64 - 1, np.uint64), LABELS > 0,
  LABELS.astype(str), LABELS.astype(object), LABELS.astype("M8[s]"), LABELS[:, None], np.array(3), LABELS[:0],
  LABELS.astype(">i8"), np.eye(3)[LABELS], LABELS.astype("S1"), LABELS[:7], NAMES[LABELS], np.ones((8, 3)))
SCORES = (
  LOGITS, PROBS, LOGITS.astype(np.float16), LOGITS.astype(">f4"), LOGITS.astype(int), LOGITS.astype(str), LOGITS[:, :1],
  LOGITS[None], LOGITS * 1e38, LOGITS * np.inf, LOGITS[:0], LOGITS[:, :0], np.asfortranarray(LOGITS), LOGITS * 1j,
  LOGITS * np.nan, np.where(np.eye(3)[LABELS] > 0, -np.inf, LOGITS))
# Arrays beside logits and labels, of which none is accepted without a word.
EXTRAS = {"label": LABELS[::-1], "probs": PROBS, "classes": np.array(["a", "a", "c"]), "kind": np.array("x"),
          "class_names": np.array([1, 2, 3]), "features": np.zeros((10**5, 2)), "Logits": PROBS,
          "train_counts": np.array([1, -2, 3]), "y_true": LABELS + 1}


def load(path: pathlib.Path | str) -> Answer:
  return read(lambda: evaluation.load(path, say=print))


def check(answer: Answer, scores: np.ndarray, labels: np.ndarray, classes: list[str] = (), first: int = 0) -> None:
  """Asserts that predictions are those scores, as logits or as probabilities, and labels that are classes."""
  scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
  binary = scores.ndim == 1 or scores.shape[1] == 1
  z = np.stack([0 * scores.ravel(), scores.ravel()], 1) if binary else scores
  p = np.stack([1 - scores.ravel(), scores.ravel()], 1) if binary else scores
  readings = z, np.log(np.clip(p.astype(np.float32), np.finfo(np.float32).tiny, None))
  one_hot = labels.ndim == 2 and labels.shape[1] > 1
  assert not one_hot or (labels.sum(1) == 1).all()
  numbers = [classes.index(x) if x in classes else float(x) - first
             for x in (labels.argmax(1) if one_hot else labels.ravel()).astype(str)]
  np.testing.assert_array_equal(answer.value.labels, numbers)
  assert set(numbers) <= set(range(z.shape[1])) and np.isfinite(z[np.arange(len(z)), answer.value.labels]).all()
  assert any(answer.value.logits.shape == x.shape and np.allclose(answer.value.logits, x, rtol=1e-6, atol=1e-6)
             for x in readings)


@attacked(files.archives(**SOUND, classes=NAMES) | st.builds(
  lambda name, scores, label, labels: files.npz(**{name: scores, label: labels}), st.sampled_from((
    "logits", "probs", "outputs", "y_prob")), st.sampled_from(SCORES), st.sampled_from(("labels", "y", "Label")),
  st.sampled_from(LABELLINGS)), [
    *(files.npz(**SOUND | {"labels": x}) for x in LABELLINGS), *(files.npz(**SOUND | {"logits": x}) for x in SCORES),
    *(files.npz(**SOUND | {name: x}) for name, x in EXTRAS.items()), files.npz(outputs=LOGITS, labels=LABELS),
    files.npz(probs=LOGITS, labels=LABELS), files.npz(("logits", -LOGITS), **SOUND)])
def test_archives(folder, content):
  path = folder / "x.npz"
  path.write_bytes(content)
  if (answer := load(path)).refusal:
    return
  with np.load(path) as arrays:
    names = arrays.files
    scores = [x for x in ("logits", "probs", "outputs", "y_prob") if x in names]
    labels = {arrays[x].tobytes(): arrays[x] for x in names if x.lower() in ("labels", "label", "y", "y_true")}
    check(answer, arrays[scores[0]], *labels.values(), *([arrays["classes"].tolist()] if "classes" in names else []))
    assert len(set(map(str.lower, names))) == len(names) and not {"kind", "train_counts", "class_names"} & set(names)
    assert answer.printed or not (len(scores) > 1 or scores[0] == "outputs")


# Headers of tables, and of those that have a reading the places of the scores in the order of the classes.
HEADERS = {
  "label,logit_0,logit_1,logit_2": (1, 2, 3), "y,logit_2,logit_0,logit_1": (2, 3, 1),
  "Label,id,logit_0,logit_1": (2, 3), "label,logit_0,logit_1,prob_0": (1, 2),
  "label,logit_1,logit_2,logit_3": (1, 2, 3), "label,score_0,score_1,note": (), "target,prob_a,prob_b,prob_c": (),
  "label,logit_0,logit_1,logit_1": (), "label,logit_0,logit_1,logit_01": (), "label,Logit_0,logit_0,logit_1": (),
  "label,logit_0,logit_2,logit_5": (), "label,Label,logit_0,logit_1": (), "label,y_true,logit_0,logit_1": (),
  "label,logit_cat,logit_1,logit_dog": (), "label,logit,logit_0,logit_1": (), "label,logit_²,logit_0,logit_1": ()}
CELLS = ("", "nan", "inf", "x", "1_0", "1e400", '"1"', '"a,b"', "=1+1", "0x1", "\x1b[2J", "\u0661", " 1 ", "True",
         "1.0", "9" * 20, "-1", '"', "#", "1;2", "1 2", "\x00", "1,", "\n", "1,1")
OTHERS = ("", "x", None, 2**70, float("nan"), [1.0], [])  # Cells of tables whose cells have types.
SUFFIXES = (".csv", ".jsonl", ".parquet")


def written(path: pathlib.Path, header: str, rows: list[list]) -> None:
  names = header.split(",")
  if path.suffix == ".parquet":
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(x) for x in zip(*rows, strict=True)], names), path)
  elif path.suffix == ".jsonl":
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
  else:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))


def cells_of(path: pathlib.Path, header: str) -> list[list]:
  if path.suffix == ".parquet":
    columns = [column.to_pylist() for column in parquet.read_table(path).columns]
    return list(map(list, zip(*columns, strict=True)))
  if path.suffix == ".jsonl":
    lines = filter(str.strip, path.read_text("utf-8-sig").split("\n"))
    return [[json.loads(line)[name] for name in header.split(",")] for line in lines]
  rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))[1:]
  return [row for row in rows if "".join(row).strip()]


@attacked(st.tuples(
  st.sampled_from(list(HEADERS)), st.sampled_from(SUFFIXES), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), (
    st.sampled_from(CELLS + OTHERS))), max_size=2), st.just([]) | files.edits, st.sampled_from((
      ("", ""), ("label", "\ufefflabel"), ("\n", "\r\n"), (",", ";")))), [
  *((header, suffix, [], [], ("", "")) for header in HEADERS for suffix in SUFFIXES),
  (next(iter(HEADERS)), ".parquet", [], [("put", 4, b"\xff\xff\xff\xff")], ("", "")),
  *((header, suffix, [(3, column, cell)], [], ("", "")) for header in (next(iter(HEADERS)), "label,logits,x,z")
    for suffix in SUFFIXES for column in (0, 1) for cell in (CELLS if suffix == ".csv" else OTHERS))], number=10)
def test_tables(folder, case):
  header, suffix, cells, edits, change = case
  path, names, first = folder / f"x{suffix}", header.split(","), int("logit_3" in header)
  rows = [[int(label % 2 + first), *map(float, row)] for label, row in zip(LABELS, LOGITS, strict=True)]
  if "logits" in names:  # A list in each row.
    rows = [[row[0], row[1:], 0.0, 0.0] for row in rows]
  for row, column, cell in cells:
    rows[row][column] = cell
  try:
    written(path, header, rows)
  except (pyarrow.ArrowException, OverflowError):  # A column of Parquet has one type.
    return
  content = path.read_bytes()
  start = len(header.encode()) + 1 if suffix == ".csv" else 0  # What a changed header means is another question.
  content = content[:start] + files.edited(content[start:], edits)
  path.write_bytes(content if suffix == ".parquet" else content.replace(*(x.encode() for x in change)))
  answer, places = load(path), HEADERS.get(header, (1,))
  if not answer.refusal and not (suffix == ".jsonl" and len(set(names)) < 4):
    rows = cells_of(path, header)
    assert places and all(len(row) == 4 for row in rows)
    scores = [row[1] if "logits" in names else [float(row[place]) for place in places] for row in rows]
    check(answer, scores, [float(row[0]) for row in rows], first=first)
    assert answer.printed or not (first or "prob_0" in header)
  assert not answer.refusal or cells or edits or change[0] or not places
