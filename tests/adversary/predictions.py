"""Mutated predictions as ``.npz``, pairs of ``.npy``, CSV, JSON lines and Parquet, and a plain reading of each.

What is accepted must be what the plain reading gives in the documented order; where a file has two readings, something
must have been said.
"""

import io
import json
import pathlib
import random

import numpy as np

from calib_jax import evaluation
from calib_jax.predictions import headers
from tests.adversary import mutations, plain
from tests.adversary.judge import Kind

LOGITS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
LABELS = np.arange(8) % 3


def _probs() -> np.ndarray:
  exp = np.exp(LOGITS)
  return exp / exp.sum(1, keepdims=True)


def _arrays(draw: random.Random) -> dict[str, np.ndarray]:
  """Returns predictions under names and with types that are drawn; some of them are wrong."""
  scores = LOGITS if draw.random() < 0.7 else _probs()
  name = draw.choice(("logits", "probs", "scores", "log_probs", "y_prob")) if scores is not LOGITS else draw.choice(
    ("logits", "logit", "outputs", "logits"))
  labels = LABELS
  if draw.random() < 0.3:
    labels = draw.choice((
      LABELS * 1.0, LABELS + 2**31, LABELS.astype(np.uint64), np.full(8, 2**64 - 1, np.uint64), LABELS - 2, LABELS > 0,
      LABELS.astype(str), LABELS.astype(object), LABELS.astype("M8[s]"), np.zeros(8, [("a", "i4")]), LABELS[:, None],
      np.array(3), LABELS[:0], LABELS.astype(">i8"), LABELS.astype(np.uint8), np.eye(3)[LABELS], np.eye(3, dtype=int)[
        LABELS], LABELS.astype("S1"), LABELS[:7], np.array(["a", "b", "c"])[LABELS], LABELS.astype(np.float16)))
  if draw.random() < 0.2:
    scores = draw.choice((
      scores.astype(np.float64), scores.astype(np.float16), scores.astype(">f4"), scores.astype(np.int64),
      scores.astype(str), scores[:, :1], scores[:, 0], scores[None], scores * 1e38, scores * np.inf, scores[:0],
      scores[:, :0], np.asfortranarray(scores), scores.astype(complex), scores.astype(np.longdouble), scores * 1e300))
  arrays = {name: scores, draw.choice(("labels", "labels", "label", "y", "targets", "Label")): labels}
  if draw.random() < 0.3:
    extra = draw.choice(("label", "y_true", "probs", "scores", "classes", "kind", "features", "train_counts", "Labels",
                         "logits_0", "class_names", "softmax"))
    arrays[extra] = draw.choice((LABELS, _probs(), np.array(["a", "b", "c"]), np.array(["a", "a", "c"]), np.array("x"),
                                 np.array("shifted"), np.array([1, 2, 3]), np.zeros((10**5, 2)), np.array([1, -2, 3])))
  return arrays


def _silent_file(read):
  def judge(sound, path, value, said):
    try:
      columns = read(pathlib.Path(path).read_bytes())
    except plain.Unclear as why:
      return "" if said.strip() else f"accepted in silence, and it is unclear: {why}"
    return plain.silent(columns, value, said)

  return judge


def _read(path: str) -> evaluation.Predictions:
  return evaluation.load(path, say=print)


def _bombs(folder: pathlib.Path) -> list[bytes]:
  return mutations.bombs({"logits": LOGITS, "labels": LABELS}, ("junk", "features", "classes", "logits"))


def _npz(draw, bombs, folder):
  path = folder / "predictions.npz"
  arrays = _arrays(draw)
  if draw.random() < 0.3:
    content = mutations.zipped([(f"{name}.npy", mutations.npy(x)) for name, x in arrays.items()])
  else:
    sound = {"logits": LOGITS, "labels": LABELS, "classes": np.array(["a", "b", "c"])}
    content = mutations.archive(draw, sound if draw.random() < 0.7 else arrays, bombs)
  path.write_bytes(content)
  mutations.in_place_of(draw, path)
  return str(path)


def _pair(draw, sound, folder, *, scores=LOGITS, labels=LABELS):
  """Writes a pair of ``.npy``; returns its paths with a comma."""
  arrays = {"scores": scores, "labels": labels}
  if draw.random() < 0.3:
    names = list(drawn := _arrays(draw))
    arrays = {"scores": drawn[names[0]], "labels": drawn[names[1]]}
  contents = {name: mutations.npy(x) for name, x in arrays.items()}
  place = draw.choice(list(contents))
  way = draw.random()
  if way < 0.3:
    contents[place] = mutations.changed(contents[place], draw, 130)
  elif way < 0.5:
    contents[place] = mutations.changed(contents[place], draw)
  elif way < 0.75:
    contents[place] = mutations.lying(draw, contents[place])
  elif way < 0.8:
    contents[place] = mutations.zipped([(place, contents[place])])
  name = draw.choice(("logits", "scores", "probs", "test"))
  paths = folder / f"{name}.npy", folder / "labels.npy"
  for path, content in zip(paths, contents.values(), strict=True):
    path.write_bytes(content)
  mutations.in_place_of(draw, draw.choice(paths))
  return ",".join(map(str, paths))


def _silent_pair(sound, case, value, said):
  scores, labels = case.split(",")
  name = next((alias for alias in (*headers.PROBS, *headers.LOGITS) if alias in pathlib.Path(scores).stem), "scores")
  return plain.silent([(name, np.load(scores, mmap_mode="r")), ("labels", np.load(labels, mmap_mode="r"))], value, said)


def _csv(draw, sound, folder):
  path = folder / draw.choice(("predictions.csv", "predictions.CSV"))
  path.write_bytes(_table(draw))
  mutations.in_place_of(draw, path)
  return str(path)


def _names(draw: random.Random) -> list[str]:
  """Returns the names of four columns, the labels first; some of them have no single reading."""
  label = draw.choice(("label", "labels", "y", " Label", "target"))
  return draw.choice((
    [label, "logit_0", "logit_1", "logit_2"], [label, "prob_a", "prob_b", "prob_c"], [label, "logit_2", "logit_0",
    "logit_1"], [label, "logit_0", "logit_1", "logit_1"], [label, "logit_0", "logit_1", "logit_01"], [label, "Logit_0",
    "logit_0", "logit_1"], [label, "logit_0", "logit_2", "logit_5"], [label, "Label", "logit_0", "logit_1"], [label,
    "y_true", "logit_0", "logit_1"], [label, "logit_0", "logit_1", "prob_0"], [label, "logit_cat", "logit_1",
    "logit_dog"], [label, "id", "logit_0", "logit_1"], [label, "logit", "logit_0", "logit_1"], [label, "score_0",
    "score_1", "note"], [label, "logit_1", "logit_2", "logit_3"], [label, "logit_²", "logit_0", "logit_1"]))


def _table(draw: random.Random) -> bytes:
  names = _names(draw)
  places = sorted(range(4), key=lambda _: draw.random())
  rows = [[str(LABELS[i] if LABELS[i] < 2 or draw.random() < 0.9 else 1), *(f"{x:.5f}" for x in LOGITS[i])]
          for i in range(8)]
  if draw.random() < 0.3:
    row = draw.choice(rows)
    cell = draw.randrange(4)
    row[cell] = draw.choice(("", "nan", "inf", "x", "1_0", "1e400", '"1"', '"a,b"', "=1+1", "0x1", "\x1b[2J", "\u0661",
                             " 1 ", "1.0", "True", "99999999999999999999", "-1", '"', "#", "1;2", "1 2", "\x00"))
  if draw.random() < 0.2:
    row = draw.choice(rows)
    row[:] = draw.choice((row[:3], [*row, "1"], [*row, ""], [], [""], row * 2))
  content = "\n".join(",".join(row[i] if i < len(row) else "" for i in places) if len(row) == 4 else ",".join(row)
                      for row in [names, *rows]).encode() + b"\n"
  if draw.random() < 0.1:
    content = draw.choice((content.replace(b",", b";"), b"\xef\xbb\xbf" + content, content.decode().encode("utf-16"),
                           content.replace(b"\n", b"\r\n"), content.replace(b"\n", b"\r"), content[:-1]))
  return mutations.changed(content, draw) if draw.random() < 0.6 else content


def _parquet(draw, sound, folder):
  import pyarrow
  from pyarrow import parquet

  names = _names(draw)
  labels = [int(x) for x in LABELS % 2]
  kind = draw.choice((pyarrow.int64(), pyarrow.int32(), pyarrow.uint64(), pyarrow.uint8(), pyarrow.float64(),
                      pyarrow.string(), pyarrow.bool_(), pyarrow.timestamp("s"), pyarrow.decimal128(10, 2)))
  if draw.random() < 0.1:
    labels[draw.randrange(8)] = None
  try:
    columns = [pyarrow.array([str(x) for x in labels] if kind == pyarrow.string() else labels).cast(kind)]
  except (pyarrow.ArrowException, ValueError):
    columns = [pyarrow.array(labels)]
  for place in range(3):
    numbers = [float(x) for x in LOGITS[:, place]]
    if draw.random() < 0.05:
      numbers[0] = None
    headers.append(pyarrow.array(numbers, draw.choice((pyarrow.float32(), pyarrow.float64()))))
  if draw.random() < 0.15:
    lists = draw.choice((LOGITS.tolist(), [*LOGITS.tolist()[:7], [1.0]], [*LOGITS.tolist()[:7], None],
                         [*LOGITS.tolist()[:7], [None, 1.0, 1.0]], [[]] * 8))
    names, columns = [names[0], draw.choice(("logits", "probs", "scores"))], [columns[0], pyarrow.array(lists)]
  file = io.BytesIO()
  if draw.random() < 0.03:  # Much when it is decoded, and little as it is encoded.
    size = 3 * 10**7
    names, columns = ["label", "logit_0", "logit_1"], [pyarrow.array(np.zeros(size, np.int64)), *(
      pyarrow.array(np.zeros(size)) for _ in range(2))]
    content = sound.setdefault("flood", b"")
    if not content:
      parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), file)
      sound["flood"] = file.getvalue()
    content = sound["flood"]
  else:
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), file,
                        compression=draw.choice(("none", "snappy", "gzip", "zstd")))
    content = file.getvalue()
    if draw.random() < 0.6:
      end = len(content)
      part = draw.choice((end, 100)) if draw.random() < 0.5 else None
      content = mutations.changed(content, draw, part) if part else (
        content[:end // 2] + mutations.changed(content[end // 2:], draw))  # The footer is in the second half.
  path = folder / "predictions.parquet"
  path.write_bytes(content)
  mutations.in_place_of(draw, path)
  return str(path)


def _json_lines(draw, sound, folder):
  names = _names(draw) if draw.random() < 0.5 else ["label", draw.choice(("logits", "scores", "probs"))]
  scores = LOGITS.tolist() if len(names) > 2 else LOGITS[:, None].tolist()
  rows = [dict(zip(names, [int(LABELS[i]), *scores[i]], strict=True)) for i in range(8)]
  lines = [json.dumps(row).encode() for row in rows]
  for _ in range(draw.randrange(3)):
    place = draw.randrange(8)
    lines[place] = mutations.json_text(draw, rows[place]).replace(b"\n", b" ")
  content = b"\n".join(lines)
  path = folder / "predictions.jsonl"
  path.write_bytes(mutations.changed(content, draw) if draw.random() < 0.2 else content)
  mutations.in_place_of(draw, path)
  return str(path)


KINDS: dict[str, Kind] = {
  "predictions.npz": Kind(_bombs, _npz, _read, _silent_file(plain.npz)),
  "predictions.npy pair": Kind(lambda folder: None, _pair, _read, _silent_pair),
  "predictions.csv": Kind(lambda folder: None, _csv, _read, _silent_file(plain.csv_file)),
  "predictions.jsonl": Kind(lambda folder: None, _json_lines, _read, _silent_file(plain.json_lines)),
  "predictions.parquet": Kind(lambda folder: {}, _parquet, _read, _silent_file(plain.parquet)),
}
