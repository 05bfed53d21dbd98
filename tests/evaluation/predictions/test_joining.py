"""Sets of classes meet by name: the order of columns changes no number, and other names are refused by name."""

import itertools

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import compare
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.predictions import ensembles
from calib_jax.evaluation.predictions.joining import aligned
from tests.evaluation.predictions.data import columns_of, written

NAMES = ("cat", "dog", "eel")
OPTIONS = ["--num_resamples", "20", "--columns", "accuracy,nll"]


def _draw(seed, n=300):
  """Probabilities that a bias by class mends, and labels."""
  rng = np.random.default_rng(seed)
  z = 2 * rng.normal(size=(n, 3))
  q, p = np.exp(z), np.exp(z + np.array([1.5, 0, -1.5]))
  q, p = (x / x.sum(1, keepdims=True) for x in (q, p))
  return p.astype(np.float32), np.array([rng.choice(3, p=row) for row in q])


def _file(path, order=(0, 1, 2), seed=1, *, texts=True, names=NAMES):
  """Predictions whose columns stand in this order; labels are names, or places among the columns of the file."""
  (p, y), order = _draw(seed), list(order)
  labels = np.array(names)[y] if texts else np.argsort(order)[y]
  named = [names[k] for k in order]
  if path.suffix == ".npz":
    np.savez(path, probs=p[:, order], labels=labels, classes=named)
    return path
  return written(path, [*columns_of("prob", p[:, order], named), ("label", labels)])


def _table(capsys):
  return [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet", ".tsv"])
def test_the_order_of_the_columns_of_a_test_set_changes_no_number(suffix, texts, tmp_path, capsys):
  fit, options = str(_file(tmp_path / "fit.csv", seed=0)), ["--calibrators", "vector_scaling", *OPTIONS]
  tables = []
  for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
    test = _file(tmp_path / f"t{suffix}", order, texts=texts)
    assert command.main(["--fit", fit, "--test", str(test), *options]) == 0
    captured = capsys.readouterr()
    assert ("t has its classes in another order than --fit: they are joined by name" in captured.err) == (
      order != (0, 1, 2))
    tables.append([line for line in captured.out.splitlines() if line.startswith("| ")])
  assert len(tables[0]) == 3 and tables[0] == tables[1] == tables[2]


def test_predictions_are_the_same_whatever_the_order_of_columns(tmp_path):
  """Every order of three, against the file in the order of the names; everything by class goes along."""
  straight = evaluation.load(_file(tmp_path / "a.npz"))._replace(train_counts=np.array([5, 6, 7]))
  for order in itertools.permutations(range(3)):
    turned = evaluation.load(_file(tmp_path / "b.npz", order))._replace(
      train_counts=np.array([5, 6, 7])[list(order)])
    joined = aligned({"a": straight, "b": turned})["b"]
    for name in ("logits", "labels", "probs", "train_counts"):
      np.testing.assert_array_equal(getattr(joined, name), getattr(straight, name))
    assert joined.classes == NAMES
    fitted = evaluation.fit([straight], {"VS": calibrators.vector_scaling()})
    (one,), (other,) = (evaluation.calibrated(fitted, "VS", [part]) for part in (straight, turned))
    np.testing.assert_array_equal(one.log_probs(), other.log_probs())
    pooled = ensembles.pooled([straight, turned])
    np.testing.assert_allclose(pooled.logits, straight.logits, atol=1e-6)
    assert evaluation.Model({"t": [turned]}, fitted).sets["t"][0].classes == NAMES


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_other_names_are_refused_by_name(suffix, tmp_path, capsys):
  fit, fox = _file(tmp_path / f"fit{suffix}"), _file(tmp_path / f"fox{suffix}", names=("cat", "dog", "fox"))
  for line in (["--fit", fit, "--test", fox], ["--test", fit, "--compare", fox], ["--test", fit, "--ood", fox],
               ["--test", fit, "--test", fox], ["--test", fit, fox, "--ensemble"],
               ["--fit", fit, "--choose", fox, "--test", fit, "--risk", "0.3"]):
    assert command.main([*map(str, line), *OPTIONS]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: the classes of ") and "'fox'" in message and "'eel'" in message, message
  assert compare.main([str(fit), str(fox), *OPTIONS]) == 2
  assert "only fox has 'fox' and only fit has 'eel'" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["--compare", "--ensemble", "compare"])
def test_models_with_columns_in_another_order_are_compared_and_pooled(run, tmp_path, capsys):
  mine, same, other = (str(_file(tmp_path / f"{name}.csv", order)) for name, order in (
    ("mine", (0, 1, 2)), ("same", (0, 1, 2)), ("other", (2, 0, 1))))
  tables = []
  for second in (same, other):
    if run == "compare":
      assert compare.main([mine, second, *OPTIONS]) == 0
    else:
      files = ["--test", mine, second, "--ensemble"] if run == "--ensemble" else ["--test", mine, "--compare", second]
      assert command.main([*files, *OPTIONS]) == 0
    tables.append([line.replace("other", "same").replace(" ", "") for line in _table(capsys)])
  assert tables[0] == tables[1] and len(tables[0]) >= 2


def test_names_on_one_side_are_said(tmp_path, capsys):
  named = _file(tmp_path / "named.csv")
  p, y = _draw(1)
  plain = written(tmp_path / "plain.csv", [*columns_of("prob", p), ("label", y)])
  assert command.main(["--fit", str(named), "--test", str(plain), *OPTIONS]) == 0
  sentence = "{} names no classes, so they are taken in the order of those of {}: the first is cat."
  assert sentence.format("plain", "--fit") in capsys.readouterr().err
  assert command.main(["--fit", str(plain), "--test", str(named), *OPTIONS]) == 0
  assert sentence.format("--fit", "named") in capsys.readouterr().err


def test_two_classes_of_one_column_are_joined_by_the_name_of_the_column(tmp_path, capsys):
  """prob_no is one minus prob_yes, and labels of 0 and 1 beside prob_yes leave the other class without a name."""
  rng = np.random.default_rng(0)
  p = rng.uniform(size=400)
  y = (rng.uniform(size=400) < p**2).astype(int)
  files = {"yes": [("prob_yes", p), ("label", np.array(["no", "yes"])[y])],
           "no": [("prob_no", 1 - p), ("label", np.array(["no", "yes"])[y])],
           "numbers": [("prob_yes", p), ("label", y)],
           "both": [("prob_yes", p), ("prob_no", 1 - p), ("label", np.array(["no", "yes"])[y])]}
  tables = {}
  for name, columns in files.items():
    written(tmp_path / f"{name}.csv", columns)
    assert command.main(["--fit", str(tmp_path / "yes.csv"), "--test", str(tmp_path / f"{name}.csv"),
                         "--calibrators", "vector_scaling", *OPTIONS]) == 0
    tables[name] = _table(capsys)
  assert tables["yes"] == tables["no"] == tables["numbers"] == tables["both"]


@pytest.mark.parametrize("suffix", ["csv", "npz", "jsonl", "parquet"])
def test_labels_of_multi_label_files_are_joined_by_name(suffix, tmp_path, capsys):
  rng = np.random.default_rng(0)
  z = 2 * rng.normal(size=(200, 3))
  y = (rng.uniform(size=z.shape) < 1 / (1 + np.exp(-z))).astype(int)

  def file(name, order):
    order, named = list(order), [NAMES[k] for k in order]
    if suffix == "npz":
      return written(tmp_path / f"{name}.npz", {"logits": z[:, order], "labels": y[:, order], "classes": named})
    if suffix != "csv":
      return written(tmp_path / f"{name}.{suffix}", {"logits": z[:, order], "labels": y[:, order],
                                                     "options": np.tile(named, (200, 1))})
    return written(tmp_path / f"{name}.csv", [*columns_of("logit", z[:, order], named),
                                              *columns_of("label", y[:, order], named)])

  one, other = file("one", (0, 1, 2)), file("other", (2, 0, 1))
  tables = []
  for second in (one, other):
    assert command.main(["--task=multilabel", "--test", str(one), "--compare", str(second), *OPTIONS]) == 0
    tables.append(capsys.readouterr().out)
  assert "same test predictions" not in tables[1]
  rows = [[line for line in table.replace("other", "one").splitlines() if "| none" in line] for table in tables]
  assert [row.split("|")[3:] for row in rows[0]] == [row.split("|")[3:] for row in rows[1]]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_names_of_labels_that_differ_by_row_are_refused(suffix, tmp_path):
  lists = {"probs": np.array([[0.1, 0.2], [0.3, 0.4]]), "label": np.eye(2)[[0, 0]]}
  path = written(tmp_path / f"x.{suffix}", lists | {"options": np.array([["a", "b"], ["b", "a"]])})
  parts = evaluation.load_labels(path)
  assert parts["a"].labels.tolist() == [1, 0] and parts["b"].labels.tolist() == [0, 1]
  np.testing.assert_allclose(parts["a"].probs[:, 1], [0.1, 0.4])
  path = written(tmp_path / f"x.{suffix}", lists | {"options": np.array([["a", "b"], ["b", "c"]])})
  with pytest.raises(UserError, match="the names of the labels must be the same in all rows"):
    evaluation.load_labels(path)


def test_names_that_are_texts_of_numbers_are_names(tmp_path):
  """'10' is no place: it is joined by name, whether labels are texts, numbers or places."""
  p, y = _draw(3)
  names = np.array(["10", "2", "30"])
  for labels in (names[y], names[y].astype(int)):
    np.savez(tmp_path / "x.npz", probs=p, labels=labels, classes=names)
    np.testing.assert_array_equal(evaluation.load(tmp_path / "x.npz").labels, y)
  np.savez(tmp_path / "x.npz", probs=p, labels=y, classes=names)  # 0 and 1 are no names.
  np.testing.assert_array_equal(evaluation.load(tmp_path / "x.npz").labels, y)
  with pytest.raises(UserError, match="may be these"):  # 1 and 2 are names as well as places.
    np.savez(tmp_path / "x.npz", probs=p, labels=y % 2 + 1, classes=np.array(["1", "2", "3"]))
    evaluation.load(tmp_path / "x.npz")
  np.savez(tmp_path / "x.npz", probs=p, labels=y, classes=np.array(["0", "1", "2"]))
  np.testing.assert_array_equal(evaluation.load(tmp_path / "x.npz").labels, y)


def test_sets_without_names_keep_their_order():
  p, y = _draw(1)
  part = evaluation.Predictions(np.log(p), y)
  assert aligned({"a": part, "b": part})["b"] is part
  with pytest.raises(UserError, match="have 2 classes, those of a 3"):
    aligned({"a": part, "b": part._replace(logits=part.logits[:, :2])})
