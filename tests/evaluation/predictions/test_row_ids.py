"""Rows of files of the same examples are joined by their ids, in whichever order they stand."""

import json

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import compare
from calib_jax.cli import evaluate as command
from tests.evaluation.predictions.data import LABELS, LOGITS, TABLES, assert_same, columns_of, written

IDS = np.array([f"q{i}" for i in range(12)])
ORDER = np.random.default_rng(3).permutation(12)
OPTIONS = ["--num_resamples", "20", "--json", "-"]


def _columns(rows=slice(None), ids=IDS, **more):
  return dict(columns_of("logit", LOGITS[rows])) | {"label": LABELS[rows], "id": ids[rows]} | more


def _read(folder, *tables, suffix="csv", **options):
  """Reads files of these columns one after another, and returns the last with what is said of it."""
  same, notes = evaluation.SameRows(), []
  for number, columns in enumerate(tables):
    path = written(folder / f"{number}.{suffix}", columns)
    notes.clear()
    part = evaluation.load(path, same=same, say=notes.append, **options)
  return part, " ".join(notes)


@pytest.mark.parametrize("suffix", [*TABLES, "npz"])
@pytest.mark.parametrize("ids", [IDS, 3 * np.arange(12), np.arange(12) / 4])
def test_rows_join_by_id_with_all_that_belongs_to_them(ids, suffix, tmp_path):
  def columns(rows):
    own = {"label": LABELS[rows], "id": ids[rows], "task": np.array(list("ab" * 6))[rows],
           "user": np.array(list("abcdefghijkl"))[rows]}
    return ({"logits": LOGITS[rows]} if suffix == "npz" else dict(columns_of("logit", LOGITS[rows]))) | own

  part, notes = _read(tmp_path, columns(slice(None)), columns(ORDER), suffix=suffix, groups="user", by=["task"])
  assert_same(part)
  assert part.groups.tolist() == list(range(12)) and part.subgroups["task"].number.tolist() == [0, 1] * 6
  assert "its rows stand in another order than those of" in notes and "joined by id" in notes


def test_whole_ids_are_the_same_as_numbers_with_a_point_and_as_texts(tmp_path):
  whole, texts = np.arange(12), np.array([f"{i}.0" for i in range(12)])
  assert_same(_read(tmp_path, _columns(ids=whole), _columns(ORDER, texts))[0])


@pytest.mark.parametrize(("second", "message"), [
  (_columns(ORDER, np.array([f"r{i}" for i in range(12)])), "it has none of the ids of"),
  (_columns(ORDER, np.array(["a", "b"] * 6)), "its rows have no ids of their own"),
  ({k: x for k, x in _columns(ORDER).items() if k != "id"}, "its rows have no ids of their own"),
  (_columns(ORDER, np.where(IDS == "q3", "", IDS)), "its rows have no ids of their own")])
def test_where_ids_cannot_join_rows_are_taken_in_their_order_and_this_is_said(second, message, tmp_path):
  part, notes = _read(tmp_path, _columns(), second)
  assert_same(part, LOGITS[ORDER], LABELS[ORDER])
  assert message in notes
  if "none of" not in message:  # The other way round.
    _, notes = _read(tmp_path, second, _columns())
    assert ".csv have no ids of their own, so that rows are taken in their order" in notes


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("ids", [IDS[:11].tolist(), list(range(11))])
def test_ids_that_some_rows_lack_are_none(ids, suffix, tmp_path):
  """As groups they are refused, with the row."""
  columns = {"logits": LOGITS.tolist(), "label": LABELS.tolist(), "id": [*ids, None]}
  part, notes = _read(tmp_path, {**columns, "id": IDS.tolist()}, columns, suffix=suffix)
  assert_same(part)
  assert "its rows have no ids of their own" in notes
  with pytest.raises(UserError, match="1 of its 12 rows have no 'id'; the first is row 11"):
    evaluation.load(written(tmp_path / f"x.{suffix}", columns), groups="id")


def test_the_first_file_with_ids_says_the_order(tmp_path):
  without = {k: x for k, x in _columns().items() if k != "id"}
  assert_same(_read(tmp_path, without, _columns(), _columns(ORDER))[0])


def test_rows_of_other_ids_are_left_out_and_missing_ones_refused(tmp_path):
  part, notes = _read(tmp_path, _columns(slice(0, 8)), _columns(ORDER))
  assert_same(part, LOGITS[:8], LABELS[:8])
  assert "4 of its 12 rows have an id that" in notes and "are left out" in notes
  with pytest.raises(UserError, match="it lacks 4 of the 12 ids of .*, such as 'q8': leave these rows out of both"):
    _read(tmp_path, _columns(), _columns(slice(0, 8)))


def test_ids_that_would_need_pickle_are_refused_only_where_rows_are_joined(tmp_path):
  np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, id=IDS.astype(object))
  assert_same(evaluation.load(tmp_path / "a.npz"))
  with pytest.raises(UserError, match=r"id holds Python objects, .* or of texts by .astype\(str\)"):
    evaluation.load(tmp_path / "a.npz", same=evaluation.SameRows())


def _other(rows, z, y, folder, name):
  return str(written(folder / name, dict(columns_of("logit", z[rows])) | {
    "label": y[rows], "id": np.arange(len(y))[rows]}))


def test_commands_compare_and_pool_rows_by_id(tmp_path, capsys):
  rng = np.random.default_rng(0)
  z, y = rng.normal(size=(2, 60, 3)), rng.integers(3, size=60)
  order, every = rng.permutation(60), slice(None)
  first = _other(every, z[0], y, tmp_path, "first.csv")
  (tmp_path / "a").mkdir()
  (tmp_path / "b").mkdir()
  seconds = [_other(rows, z[1], y, tmp_path / folder, "second.csv") for folder, rows in (("a", every), ("b", order))]
  for run in (lambda second: command.main(["--test", first, "--compare", second, *OPTIONS]),
              lambda second: compare.main([first, second, *OPTIONS]),
              lambda second: command.main(["--ensemble", "--test", first, second, *OPTIONS])):
    said = []
    for second in seconds:
      assert run(second) == 0
      output = capsys.readouterr()
      said.append(json.loads(output.out.replace(str(tmp_path), "")))
      assert ("joined by id" in output.err) == (second is seconds[1])
    assert said[0] == said[1]


def test_labels_of_examples_join_by_the_ids_of_the_examples(tmp_path, capsys):
  rng = np.random.default_rng(0)
  p, y, ids = rng.uniform(size=(60, 2)), rng.integers(2, size=(60, 2)), np.arange(60)
  order, tables = rng.permutation(60), []
  np.savez(tmp_path / "one.npz", probs=p, labels=y, id=ids, classes=np.array(["a", "b"]))
  for rows in (slice(None), order):
    np.savez(tmp_path / "two.npz", probs=p[rows][:, ::-1] ** 2, labels=y[rows][:, ::-1], id=ids[rows],
             classes=np.array(["b", "a"]))
    files = [str(tmp_path / f"{name}.npz") for name in ("one", "two")]
    assert command.main(["--task=multilabel", "--test", files[0], "--compare", files[1], *OPTIONS]) == 0
    output = capsys.readouterr()
    tables.append(json.loads(output.out))
    assert output.err.count("joined by id") == (rows is order)  # The file is read again, for the order of its labels.
  assert tables[0] == tables[1]


def test_answers_of_a_batch_join_by_the_id_of_the_request(tmp_path):
  """The answer has another one in each run."""
  same, parts = evaluation.SameRows(), []
  for run, rows in (("a", range(6)), ("b", [3, 1, 5, 0, 2, 4])):
    content = [{"token": "A", "logprob": -0.1 * i - 0.1} for i in range(6)]
    lines = [{"id": f"{run}{i}", "custom_id": f"request {i}", "label": "AB"[i % 2], "response": {
      "body": {"choices": [{"logprobs": {"content": [content[i]]}}]}}} for i in rows]
    (tmp_path / f"{run}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    parts.append(evaluation.load(tmp_path / f"{run}.jsonl", same=same))
  np.testing.assert_array_equal(parts[0].logits, parts[1].logits)


def test_answers_of_a_log_join_by_id_and_question(tmp_path):
  rng, parts, same = np.random.default_rng(0), [], evaluation.SameRows()
  p = rng.uniform(size=(6, 2))
  for name, rows, questions in (("a", range(6), ("u", "v")), ("b", rng.permutation(6), ("v", "u"))):
    objects = [{"id": f"t{i}", "labels": {"u": bool(i % 2), "v": i < 3}, "answers": {
      q: {"type": "noul", "noul": p[i, "uv".index(q)]} for q in questions}} for i in map(int, rows)]
    (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in objects))
    parts.append(evaluation.load(tmp_path / f"{name}.jsonl", same=same))
  np.testing.assert_array_equal(parts[0].logits, parts[1].logits)
  np.testing.assert_array_equal(parts[0].labels, parts[1].labels)
  assert [len(set(part.groups[::2].tolist())) for part in parts] == [6, 6]
