"""The command ``apply``: every kind of file in and out, some rows at a time, against softmax in NumPy."""

import functools
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import special

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from calib_jax.cli import apply, evaluate
from calib_jax.evaluation.predictions import automatic, streaming
from calib_jax.evaluation.predictions.loading import load
from tests.evaluation.predictions.data import written

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
N, T = 11, 2.5
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.normal(size=(N, 3))).astype(np.float32)
IDS = [f"q{i}, part" for i in range(N)]
WANTED = special.softmax(LOGITS / T, axis=1)
CLASSES = ("cat", "dog", "owl")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".npz")
LISTS = (".jsonl", ".json", ".lists.parquet")


@pytest.fixture
def temperature(tmp_path):
  calibrators.save(tmp_path / "t.npz", {"temperature": np.float32(T)}, calibrators.temperature_scaling())
  return tmp_path / "t.npz"


def _written(path, outputs=LOGITS, kind="logit", names=CLASSES):
  """Writes outputs with an identifying column and no labels; lists stand beside lists of names, if these are texts."""
  columns = {"id": np.array(IDS)}
  if path.suffix == ".npz":
    columns[f"{kind}s"] = outputs
  elif path.name.endswith(LISTS):
    columns |= {f"{kind}s": outputs} | ({} if names[0] == 0 else {"choices": np.tile(names, (N, 1))})
  else:
    columns |= {f"{kind}_{name}": outputs[:, k] for k, name in enumerate(names)}
  return written(path, columns | ({"class_names": np.array(names), "epoch": 3} if path.suffix == ".npz" else {}))


def _read(path):
  """The identifiers and the probabilities of what was written, and what the columns are called."""
  if path.suffix == ".npz":
    with np.load(path) as arrays:
      return arrays["id"].tolist(), arrays["probs"], None
  if path.suffix in (".jsonl", ".json"):
    table = pd.read_json(path, lines=path.suffix == ".jsonl")
    return table["id"].tolist(), np.array(table["probs"].tolist()), None
  table = {".csv": pd.read_csv, ".tsv": pd.read_table, ".parquet": pd.read_parquet}[path.suffix](path)
  if "probs" in table:
    return table["id"].tolist(), np.stack(table["probs"]), None
  probs = table.filter(like="prob_")
  return table["id"].tolist(), probs.to_numpy(), list(probs.columns)


def _apply(calibrator, path, out, *options):
  return apply.main([f"--calibrator={calibrator}", f"--predictions={path}", f"--out={out}", *options])


@pytest.mark.parametrize(("before", "after", "rows"), [
  *((suffix, suffix, 4) for suffix in SUFFIXES), (".jsonl", ".csv", 4), (".csv", ".npz", 4), (".npz", ".jsonl", 4),
  (".tsv", ".parquet", 10_000), (".parquet", ".json", 10_000), (".lists.parquet", ".tsv", 4)])
def test_any_file_becomes_any_other_with_calibrated_probabilities(before, after, rows, temperature, tmp_path,
                                                                  monkeypatch, capsys):
  monkeypatch.setattr(streaming, "ROWS", rows)
  path, out = _written(tmp_path / f"new{before}"), tmp_path / f"fixed{after}"
  assert _apply(temperature, path, out) == 0
  assert capsys.readouterr().out == f"{out} has the probabilities of 11 rows by temperature_scaling.\n"
  ids, probs, columns = _read(out)
  assert ids == IDS and probs.shape == (N, 3)
  np.testing.assert_allclose(probs, WANTED, rtol=2e-6)
  assert columns is None or columns == [f"prob_{name}" for name in CLASSES]
  assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["t.npz", path.name, out.name])
  if before == after == ".npz":
    with np.load(out) as arrays:
      assert set(arrays) == {"id", "class_names", "epoch", "probs"} and arrays["epoch"] == 3


@pytest.mark.parametrize(("kind", "options"), [("prob", ()), ("probability", ("--percent",)), ("prob", ("one",))])
def test_probabilities_are_read_as_such(kind, options, temperature, tmp_path):
  probs = special.softmax(LOGITS, axis=1)
  if options == ("one",):  # The probability of the positive class alone.
    path = _written(tmp_path / "new.csv", probs[:, 1:2], kind, ("yes",))
    odds = special.logit(probs[:, 1].astype(np.float64))
    wanted, columns = special.expit(odds / T)[:, None], ["prob_yes"]
  else:
    path = _written(tmp_path / "new.csv", 100 * probs if options else probs, kind)
    wanted, columns = WANTED, [f"prob_{name}" for name in CLASSES]
  out = tmp_path / "fixed.csv"
  flags = [option for option in options if option.startswith("--")]
  assert _apply(temperature, path, out, *flags) == 0
  ids, actual, names = _read(out)
  assert ids == IDS and names == columns
  np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_a_calibrator_of_all_rows_together_gets_them_at_once(tmp_path, monkeypatch):
  monkeypatch.setattr(streaming, "ROWS", 4)
  for suffix in SUFFIXES:
    with streaming.opened(_written(tmp_path / f"new{suffix}"), print, at_once=True) as source:
      assert [len(rows.outputs) for rows in source.rows] == [N]
  calibrator = calibrators.label_shift()
  params = {"base": {"scale": np.ones(3, np.float32), "bias": np.zeros(3, np.float32)},
            "prior": np.array([4, 1, 1], np.float32) / 6}
  wanted, first = (np.exp(calibrator.apply(params, x)) for x in (LOGITS, LOGITS[:4]))
  assert np.abs(wanted[:4] - first).max() > 0.1
  calibrators.save(tmp_path / "s.npz", params, calibrator)
  assert _apply(tmp_path / "s.npz", tmp_path / "new.csv", tmp_path / "o.npz") == 0
  np.testing.assert_allclose(_read(tmp_path / "o.npz")[1], wanted, rtol=1e-3)  # Iterations, compiled or not.


def test_evaluate_writes_the_recommended_calibrator_and_the_probabilities_that_apply_gives(no_figures, tmp_path):
  rng = np.random.default_rng(0)
  logits = (2 * rng.normal(size=(1000, 3))).astype(np.float32)
  labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
  for name in ("val", "test"):  # Overconfident by the factor 4; what fits nothing stands first.
    np.savez(tmp_path / f"{name}.npz", logits=4 * logits, labels=labels, id=np.arange(1000))
  assert evaluate.main([f"--fit={tmp_path / 'val.npz'}", f"--test={tmp_path / 'test.npz'}", "--save_probs",
                        "--calibrators", "identity", "temperature_scaling", "--num_resamples=20",
                        f"--out={tmp_path / 'out'}"]) == 0
  assert calibrators.load(tmp_path / "out/calibrator.npz").calibrator.name == "temperature_scaling"
  assert _apply(tmp_path / "out/calibrator.npz", tmp_path / "test.npz", tmp_path / "new.npz") == 0
  with np.load(tmp_path / "out/probs/test_temperature_scaling.npz") as saved, np.load(tmp_path / "new.npz") as new:
    np.testing.assert_allclose(saved["probs"], new["probs"], rtol=1e-6)
    for name, expected in (("labels", labels), ("id", np.arange(1000))):
      np.testing.assert_array_equal(new[name], expected)
    np.testing.assert_array_equal(saved["labels"], labels)


@pytest.mark.parametrize("kind", ["named", "graded"])
def test_saved_probabilities_are_read_as_what_they_were(kind, no_figures, tmp_path):
  """Names that may be places, with groups; labels without meaning; and credits that count in part."""
  rng = np.random.default_rng(0)
  for name in ("val", "test"):
    p = rng.uniform(0.2, 0.8, 90)
    beside = {"confidence": p, "correct": (rng.uniform(size=90) < p) / (1 + rng.integers(2, size=90))}
    if kind != "graded":
      logits = rng.normal(size=(90, 3)) - [9, 0, 0]  # The labels 1 and 2 may be the names 1 and 2.
      beside = {"logits": logits, "labels": np.array(["1", "2", "3"])[(logits + rng.gumbel(size=(90, 3))).argmax(1)],
                "classes": np.array(["1", "2", "3"]), "user": np.arange(90) // 2}
    np.savez(tmp_path / f"{name}.npz", **beside)
  flags = {"named": ["--groups=user", f"--ood={tmp_path / 'val.npz'}"], "graded": []}[kind]
  assert evaluate.main([f"--fit={tmp_path / 'val.npz'}", f"--test={tmp_path / 'test.npz'}", "--save_probs", *flags,
                        "--calibrators=temperature_scaling", "--num_resamples=20", f"--out={tmp_path}"]) == 0
  part = load(tmp_path / "test.npz", groups="user" if kind == "named" else "")
  saved = load(tmp_path / "probs/test_temperature_scaling.npz", weights="weights" if kind == "graded" else "",
               groups="groups")
  assert (saved.labels.tolist(), saved.classes) == (part.labels.tolist(), part.classes)
  for one, other in ((saved.weights, part.weights), (saved.groups, part.groups)):
    assert (other is None and one is None) or np.array_equal(one, other)
  if kind == "named":
    assert load(tmp_path / "probs/val_temperature_scaling.npz").kind == "out_of_distribution"


@pytest.mark.slow
def test_probabilities_of_exactly_0_have_a_floor_that_the_stored_calibrators_keep(no_figures, tmp_path, capsys,
                                                                                  monkeypatch):
  monkeypatch.setattr(automatic.calibrators, "select", functools.partial(
    calibrators.select, candidates=["identity", "temperature_scaling"]))
  rng = np.random.default_rng(0)
  for name in ("val", "test"):  # The votes of 20 trees.
    true = rng.dirichlet(np.full(3, 0.5), 1000)
    np.savez(tmp_path / f"{name}.npz", probs=np.stack([rng.multinomial(20, p) for p in true]) / 20,
             labels=[rng.choice(3, p=p) for p in true])
  assert evaluate.main([f"--fit={tmp_path / 'val.npz'}", f"--test={tmp_path / 'test.npz'}", "--num_resamples=20",
                        "--calibrators", "temperature_scaling", "auto", f"--out={tmp_path / 'out'}",
                        "--save_probs"]) == 0
  assert "of the probabilities are exactly 0: to calibrators they count as half" in capsys.readouterr().err
  (selection,) = json.loads((tmp_path / "out/results.json").read_text())["selection"]["test"]
  assert list(selection["scores"]) == ["identity", "temperature_scaling"]
  assert calibrators.load(tmp_path / "out/calibrators/auto.npz").calibrator.options["base"].name == selection["chosen"]
  row = load(tmp_path / "test.npz").logits
  for label in ("temperature_scaling", "auto"):
    fitted = calibrators.load(tmp_path / f"out/calibrators/{label}.npz")
    assert fitted.calibrator.name == "probability_floor"
    np.testing.assert_allclose(np.exp(fitted.params["floor"]), 0.025, rtol=1e-5)
    saved = np.load(tmp_path / f"out/probs/test_{label}.npz")["probs"]
    np.testing.assert_allclose(np.exp(fitted(row)), saved, atol=1e-6)


@pytest.mark.parametrize(("name", "text", "out", "reason"), [
  ("new.csv", "id,logit_a,logit_b\n" + 5 * "x,1,2\n" + "y,nan,1\n", "o.csv",
   "of the rows from 4 on: 1 of the 2 rows of its logits hold NaN"),
  ("new.csv", "id,logit_a,logit_b\nx,1,2\ny,1\n", "o.csv",
   r"new.csv cannot be read as CSV \(after 0 rows: line 3 has 2 fields"),
  ("new.csv", "id,logit_a,logit_b\n" + 9 * "x,1,2\n" + "y,1\n", "o.csv",
   r"new.csv cannot be read as CSV \(after 8 rows: line 11 has 2 fields"),
  ("new.csv", "id,name\nx,1\n", "o.csv", "must have a header with a column label"),
  ("new.csv", "id,logit_a,logit_b\n", "o.csv", "it has no rows"),
  ("new.csv", "id,logit_a,logit_b\nx,1,2\n", "o.txt", "--out .*o.txt: its ending must be one of .csv, .tsv"),
  ("new.csv", "id,logit_a,logit_b\nx,1,2\n", "new.csv", "is the file of the predictions, which it would replace"),
  ("new.jsonl", '{"logits": [[1, 2], [3, 4]]}\n', "o.csv", "logits must be floats .* of shape .N, K., not float64"),
  ("new.jsonl", 5 * '{"logits": [1, 2]}\n' + '{"logits": null}\n', "o.csv", "line 6 has no .logits.: leave this row"),
  ("new.jsonl", '{"logits": [1, 2], "classes": ["a", "a"]}\n', "o.csv", "must be 2 different names: got 'a, a'"),
  ("new.json", '{"logits": [[1, 2]], "classes": ["a"]}', "o.csv", "must be 2 different names: got 'a'"),
  ("new.jsonl", '{"logits": [1, 2]}\n{"logits": ["a", "b"]}\n', "o.csv", "logits. must hold numbers, or texts, in all"),
  ("new.jsonl", '{"probs": {"a": 0.5, "b": 0.5}}\n{"probs": {"a": true, "b": 1}}\n', "o.csv", "row 1,.* number for .a"),
])
def test_a_mistake_is_one_sentence_and_leaves_no_file(name, text, out, reason, temperature, tmp_path, capsys,
                                                       monkeypatch):
  monkeypatch.setattr(streaming, "ROWS", 4)
  (tmp_path / name).write_text(text)
  before = sorted(tmp_path.iterdir())
  assert _apply(temperature, tmp_path / name, tmp_path / out) == 2
  message = capsys.readouterr().err.splitlines()[-1]
  assert message.startswith("error: ") and re.search(reason, message), message
  assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("params", "calibrator", "reason"), [
  ({"temperature": np.nan}, [calibrators.temperature_scaling()], "cannot be used: no fit of temperature_scaling gives "
   "its temperature, because it must be in (0, inf), and is nan"),
  ({"scale": np.ones(2), "bias": np.ones(2)}, [calibrators.vector_scaling()], "was fitted to 2 classes, and "),
  ({"temperature": 1.0}, [], "holds params without the name of their calibrator")])
def test_a_calibrator_that_cannot_be_applied_is_refused(params, calibrator, reason, tmp_path, capsys):
  calibrators.save(tmp_path / "c.npz", {name: np.float32(x) for name, x in params.items()}, *calibrator)
  assert _apply(tmp_path / "c.npz", _written(tmp_path / "new.csv"), tmp_path / "o.csv") == 2
  assert f"c.npz {reason}" in capsys.readouterr().err and not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize("suffix", (*SUFFIXES[:5], ".lists.parquet"))
@pytest.mark.parametrize(("names", "message"), [
  (("owl", "cat", "dog"), "has its classes in another order than"), (("cat", "dog", "owl"), ""),
  ((0, 1, 2), "names no classes, so they are taken in the order of those of"),
  (("cat", "dog", "fox"), "only .*new.* has 'fox' and only .*c.npz has 'owl'")])
def test_columns_are_joined_with_the_classes_of_the_fit_by_name(names, message, suffix, tmp_path, capsys):
  """Rows keep the order of their own file, and each class has what it has in the order of the fit."""
  fitted = calibrators.Fitted(calibrators.vector_scaling(), {
    "scale": np.array([1.0, 0.5, 0.25], np.float32), "bias": np.array([2.0, 0, -1], np.float32)}, 3, CLASSES)
  calibrators.save(tmp_path / "c.npz", fitted)
  order = [CLASSES.index(name) if name in CLASSES else k for k, name in enumerate(names)]
  path = _written(tmp_path / f"new{suffix}", LOGITS[:, order], names=names)
  code = _apply(tmp_path / "c.npz", path, tmp_path / f"out{suffix}")
  error = capsys.readouterr().err
  assert re.search(message, error) and ("joined by name" in error) == ("another order" in message)
  if "fox" in names:
    assert code == 2 and not (tmp_path / f"out{suffix}").exists()
    return
  _, probs, heads = _read(tmp_path / f"out{suffix}")
  assert heads is None or heads == [f"prob_{name}" for name in names]
  wanted = special.softmax(LOGITS * [1.0, 0.5, 0.25] + [2.0, 0, -1], axis=1)
  np.testing.assert_allclose(probs, wanted[:, order], rtol=1e-5)


@pytest.mark.parametrize("suffix", [".jsonl", ".lists.parquet"])
def test_names_that_differ_by_row_are_those_of_no_class(suffix, temperature, tmp_path, capsys):
  names = np.array([CLASSES if i % 2 else [*CLASSES[:2], "fox"] for i in range(N)])
  path = written(tmp_path / f"new{suffix}", {"id": np.array(IDS), "logits": LOGITS, "choices": names})
  assert _apply(temperature, path, tmp_path / "o.csv") == 0
  assert _read(tmp_path / "o.csv")[2] == ["prob_0", "prob_1", "prob_2"]


@pytest.mark.parametrize("suffix", [".jsonl", ".lists.parquet", ".decisions.jsonl"])
def test_rows_that_have_the_classes_in_their_own_order_are_joined_by_name(suffix, tmp_path, monkeypatch, capsys):
  """They keep their order, also where few are read at a time, and a table numbers its columns."""
  monkeypatch.setattr(streaming, "ROWS", 7)
  fitted = calibrators.Fitted(calibrators.vector_scaling(), {
    "scale": np.ones(3, np.float32), "bias": np.array([2, 0, -1], np.float32)}, 3, tuple(CLASSES))
  calibrators.save(tmp_path / "c.npz", fitted)
  order = np.random.default_rng(0).permuted(np.tile(np.arange(3), (N, 1)), axis=1)
  names, logits = np.array(CLASSES)[order], np.take_along_axis(LOGITS, order, 1)
  path = tmp_path / f"new{suffix}"
  if "decisions" in suffix:
    answers = [{"q": {"type": "choice", "probabilities": dict(zip(row, p, strict=True))}}
               for row, p in zip(names, special.softmax(logits, axis=1).tolist(), strict=True)]
    path.write_text("".join(json.dumps({"answers": x}) + "\n" for x in answers))
  else:
    written(path, {"id": np.array(IDS), "logits": logits, "choices": names})
  assert _apply(tmp_path / "c.npz", path, tmp_path / f"o{suffix}") == 0
  assert "its rows have their classes in several orders, and are joined by name" in capsys.readouterr().err
  wanted = np.take_along_axis(special.softmax(LOGITS + np.array([2, 0, -1]), axis=1), order, 1)
  if "decisions" in suffix:
    answers = [json.loads(line)["answers"]["q"]["probabilities"]
               for line in (tmp_path / f"o{suffix}").read_text().splitlines()]
    assert [list(answer) for answer in answers] == names.tolist()
    np.testing.assert_allclose([list(answer.values()) for answer in answers], wanted, rtol=1e-5)
    return
  _, probs, heads = _read(tmp_path / f"o{suffix}")
  assert heads is None  # Lists, beside those of the names.
  np.testing.assert_allclose(probs, wanted, rtol=1e-5)
  assert _apply(tmp_path / "c.npz", path, tmp_path / "o.csv") == 2
  assert "each row has the classes in an order of its own, which only .jsonl, .json" in capsys.readouterr().err


@pytest.mark.parametrize("after", [".csv", ".jsonl", ".parquet", ".npz"])
@pytest.mark.parametrize("before", [".csv", ".lists.parquet", ".classes.jsonl", ".names.jsonl", ".one.csv"])
def test_what_is_written_is_read_with_the_names_of_its_classes(before, after, temperature, tmp_path):
  probs, names, labels = WANTED, CLASSES, [CLASSES[i % 3] for i in range(N)]
  if before == ".one.csv":
    probs, names, labels = WANTED[:, :1], CLASSES[:1], [("dog", "cat")[i % 2] for i in range(N)]
  columns = {"label": np.array(labels), "options": np.full(N, 3)}  # A number, as logs have it, and no names.
  path = tmp_path / f"new{before}"
  if before == ".names.jsonl":
    path.write_text("".join(json.dumps({"label": y, "probs": dict(zip(names, p, strict=True))}) + "\n"
                            for y, p in zip(labels, probs.tolist(), strict=True)))
  elif before.endswith(".csv"):
    written(path, columns | {f"prob_{name}": probs[:, k] for k, name in enumerate(names)})
  else:
    key = "classes" if "classes" in before else "choices"
    written(path, columns | {"probs": probs, key: np.tile(names, (N, 1))})
  assert _apply(temperature, path, tmp_path / f"o{after}") == 0
  if (before, after) == (".one.csv", ".npz"):
    with pytest.raises(UserError, match="its labels are text"):  # An archive cannot name its one column.
      load(tmp_path / "o.npz")
    return
  one, other = load(path), load(tmp_path / f"o{after}")
  if not before.startswith(".names"):
    columns = load(tmp_path / f"o{after}", columns=["options"]).covariates
    assert columns["options"].astype(int).tolist() == [3] * N
  assert one.classes == other.classes and one.labels.tolist() == other.labels.tolist()


@pytest.mark.parametrize(("column", "swapped"), [("prob_yes", False), ("prob_no", True)])
def test_one_column_is_of_the_class_that_it_names(column, swapped, tmp_path):
  """A Platt map of yes gives prob_no what it leaves, also where the fit had another column."""
  p = np.linspace(0.1, 0.9, 5)
  fitted = calibrators.Fitted(calibrators.vector_scaling(), {
    "scale": np.ones(2, np.float32), "bias": np.array([0, 1.5], np.float32)}, 2, ("not yes", "yes"))
  calibrators.save(tmp_path / "c.npz", fitted)
  pd.DataFrame({column: 1 - p if swapped else p}).to_csv(tmp_path / "new.csv", index=False)
  if swapped:  # "not yes" stands for any other name.
    fitted = calibrators.Fitted(fitted.calibrator, fitted.params, 2, ("no", "yes"))
    calibrators.save(tmp_path / "c.npz", fitted)
  assert _apply(tmp_path / "c.npz", tmp_path / "new.csv", tmp_path / "o.csv") == 0
  new = special.expit(special.logit(p) + 1.5)
  np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv")[column], 1 - new if swapped else new, rtol=1e-5)


def test_what_evaluate_reads_is_read_here_too(tmp_path, temperature, capsys):
  """Percentages, R's columns, numbers by name, and records of a probability or of its logarithm."""
  p = np.round(special.softmax(LOGITS, axis=1), 4)
  wanted = p ** (1 / T) / (p ** (1 / T)).sum(1, keepdims=True)
  tables = {"percent.csv": pd.DataFrame({f"prob_{name}": [f"{100 * x:.2f}%" for x in p[:, k]]
                                         for k, name in enumerate(CLASSES)}),
            "r.csv": pd.DataFrame({".pred_class": "cat", **{f".pred_{name}": p[:, k] for k, name in enumerate(CLASSES)},
                                   "Class": "owl"})}
  for name, table in tables.items():
    table.to_csv(tmp_path / name, index=False)
    assert _apply(temperature, tmp_path / name, tmp_path / "o.csv") == 0
    made = pd.read_csv(tmp_path / "o.csv")
    np.testing.assert_allclose(made[[f"prob_{x}" for x in CLASSES]], wanted, atol=2e-4)
    assert name != "r.csv" or made["Class"].eq("owl").all()
  rows = [{"id": i, "probs": dict(zip(CLASSES if i % 2 else CLASSES[::-1], row if i % 2 else row[::-1], strict=True))}
          for i, row in enumerate(p.tolist())]
  (tmp_path / "by_name.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert _apply(temperature, tmp_path / "by_name.jsonl", tmp_path / "o.csv") == 0
  np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv")[[f"prob_{x}" for x in CLASSES]], wanted, atol=2e-4)
  params = {name: np.float32(x) for name, x in (("temperature", T), ("least", -50), ("most", 50), ("chance_share", 0))}
  calibrators.save(tmp_path / "r.npz", params, calibrators.record_calibration("temperature_scaling"))
  confidence = p.max(1).astype(float)
  new = special.expit(special.logit(confidence) / T)
  for column, values in (("prob", confidence), ("logprob", np.log(confidence)), ("confidence", confidence)):
    for suffix in SUFFIXES:
      written(tmp_path / f"records{suffix}", {column: values, "correct": np.ones(N)})
      assert _apply(tmp_path / "r.npz", tmp_path / f"records{suffix}", tmp_path / "o.csv") == 0
      made = pd.read_csv(tmp_path / "o.csv")
      np.testing.assert_allclose(made["confidence"], new, rtol=1e-4)
      assert list(made.columns) == ["correct", "confidence"]
  assert "is read as the logarithm" in capsys.readouterr().err


def test_a_file_without_names_and_another_number_of_classes_are_said(temperature, tmp_path, capsys):
  """An older calibrator file has neither; a temperature can be applied to any number of classes."""
  assert _apply(temperature, _written(tmp_path / "new.csv"), tmp_path / "o.csv") == 0
  assert "t.npz names no classes, so they are taken in the order of the predictions: cat is its class 0" in (
    capsys.readouterr().err)
  calibrators.save(tmp_path / "t.npz", calibrators.Fitted(
    calibrators.temperature_scaling(), {"temperature": np.float32(T)}, 10))
  assert _apply(tmp_path / "t.npz", _written(tmp_path / "new.csv"), tmp_path / "o.csv") == 0
  assert "new.csv has 3 classes, and " in capsys.readouterr().err


def test_weights_come_along_as_other_columns_do(temperature, tmp_path, capsys):
  (tmp_path / "new.csv").write_text("weight,logit_a,logit_b\n0.5,1,2\n")
  assert _apply(temperature, tmp_path / "new.csv", tmp_path / "o.csv") == 0
  output = capsys.readouterr()
  assert (tmp_path / "o.csv").read_text().splitlines()[1].startswith("0.5,0.40")
  assert "its weights" not in output.err


@pytest.mark.parametrize(("suffix", "rows"), [(".jsonl", 4), (".parquet", 4), (".parquet", 10_000)])
def test_rows_with_fewer_options_have_as_many_probabilities_as_options(suffix, rows, temperature, tmp_path, monkeypatch,
                                                                       capsys):
  monkeypatch.setattr(streaming, "ROWS", rows)
  lists = [row[:1 + i % 3].tolist() for i, row in enumerate(LOGITS)]
  lists[5][1] = -np.inf  # An option that the row lacks between others: its place stays.
  if suffix == ".jsonl":
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"id": i, "logits": x}) + "\n" for i, x in enumerate(lists)))
  else:
    parquet.write_table(pyarrow.table({"id": list(range(N)), "logits": lists}), tmp_path / "new.parquet")
  wanted = [special.softmax(np.array(row) / T) for row in lists]
  for after in (".jsonl", ".parquet", ".csv", ".npz"):
    out = tmp_path / f"fixed{after}"
    path = tmp_path / f"new{suffix}"
    assert _apply(temperature, path, out) == 0
    assert "the lists of its logits have 1 to 3 numbers" in capsys.readouterr().err
    if after == ".jsonl":
      probs = [json.loads(line)["probs"] for line in out.read_text().splitlines()]
    elif after == ".parquet":
      probs = parquet.read_table(out)["probs"].to_pylist()
    else:
      probs = _read(out)[1]
      assert all(not row[len(x):].any() for row, x in zip(probs, lists, strict=True))
      probs = [row[:len(x)] for row, x in zip(probs, lists, strict=True)]
    assert [len(x) for x in probs] == [len(x) for x in wanted]
    for actual, expected in zip(probs, wanted, strict=True):
      np.testing.assert_allclose(actual, expected, rtol=1e-6)
