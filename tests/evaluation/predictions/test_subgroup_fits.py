"""Calibrators by subgroup: fits and selection against their definition, where the truth is known, and the commands."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax.calibrators.base import NoWeights
from calib_jax.cli import apply, evaluate
from calib_jax.evaluation.predictions import fitting, subgroup_fits
from calib_jax.evaluation.predictions.predictions import Predictions, Subgroups
from calib_jax.intervals.groups import stratified_folds

SIZES, NAMES = (200, 150, 150, 8), ("a", "b/c", "d", "few")
DIFFERENT, EQUAL = (0, 2, -2, 0), (1, 1, 1, 1)


def _share(logits, labels, *, weights=None):
  return {"share": np.average(labels == 1, weights=weights)}


# All examples get the share of the label 1 as its probability, which shows with which weights it was fitted.
SHARE = calibrators.Calibrator(_share, lambda params, logits: jnp.broadcast_to(
  jnp.log(jnp.stack([1 - params["share"], params["share"]])), logits.shape))


def _draw(seed, offsets):
  """Log-odds that are too high by the offset of their subgroup, outcomes and subgroups."""
  rng, number = np.random.default_rng(seed), np.repeat(np.arange(len(SIZES)), SIZES)
  odds = 1 + 1.2 * rng.normal(size=len(number))
  outcome = rng.random(len(number)) < 1 / (1 + np.exp(np.array(offsets)[number] - odds))
  return odds, outcome.astype(np.int32), number


def _part(seed, offsets):
  odds, outcome, number = _draw(seed, offsets)
  return Predictions(np.stack([0 * odds, odds], 1).astype(np.float32), outcome,
                     subgroups={"task": Subgroups(NAMES, number.astype(np.int32))})


def _probabilities(fitted, part):
  source, = evaluation.calibrated(fitted, "mine by task", [part])
  return np.exp(source.log_probs())[:, 1]


@pytest.mark.parametrize(("seed", "offsets"), [(0, DIFFERENT), (34, (0, 0.5, -0.5, 0))])  # The latter is a close call.
def test_fits_and_the_n0_that_is_selected_are_those_of_their_definition(seed, offsets):
  part, sentences = _part(seed, offsets), []
  fitted = evaluation.fit([part], {"mine": SHARE}, sentences.append, "task")
  (params,), number, fold = fitted["mine by task"][1], part.subgroups["task"].number, stratified_folds(part.labels, 5)

  def shares(rows, n0):
    """Of each subgroup, whose examples count once and all of them as n0 more."""
    own = [part.labels[rows & (number == k)] for k in range(4)]
    return np.array([(labels.sum() + n0 * part.labels[rows].mean()) / (len(labels) + n0) for labels in own])

  def loss(n0):
    p = np.choose(fold, [shares(fold != k, n0)[number] for k in range(5)])
    return -np.mean(np.log(np.where(part.labels == 1, p, 1 - p)))

  n0 = min(subgroup_fits.SHRINKAGES, key=loss)
  assert params["n0"] == n0 and f"all examples count as {n0:g} more of each task" in sentences[-1]
  assert f"few {800 / (8 + n0):.0f}%" in sentences[-1]
  expected = shares(np.ones(len(number), bool), n0)
  np.testing.assert_allclose([params["own"][name]["share"] for name in NAMES], expected, rtol=1e-5)
  np.testing.assert_allclose(_probabilities(fitted, part), expected[number], rtol=1e-5)
  # A cut is chosen on rows whose subgroup is fitted without their fold.
  crossed = fitting.out_of_fold(part, {"mine": SHARE}, 5, fitted, "task")["mine by task"][0].log_probs()
  p = np.choose(fold, [shares(fold != k, n0)[number] for k in range(5)])
  np.testing.assert_allclose(np.exp(crossed[:, 1]), p, rtol=1e-5)
  # Subgroups that were not fitted have the calibrator of all.
  new = part._replace(subgroups={"task": Subgroups(("new",), np.zeros_like(number))})
  np.testing.assert_allclose(_probabilities(fitted, new), part.labels.mean(), rtol=1e-5)


def test_equal_subgroups_have_one_calibrator_and_different_ones_their_own():
  by_offsets = {offsets: [evaluation.fit([_part(seed, offsets)], {"mine": SHARE}, lambda text: None, "task")
                          for seed in range(20)] for offsets in (EQUAL, DIFFERENT)}
  number_of_own = {offsets: sum("mine by task" in x for x in fits) for offsets, fits in by_offsets.items()}
  assert number_of_own[DIFFERENT] == 20 and number_of_own[EQUAL] <= 6, number_of_own


def _written(path, seed, offsets):
  odds, outcome, number = _draw(seed, offsets)
  rows = zip((1 / (1 + np.exp(-odds))).tolist(), outcome.tolist(), number.tolist(), strict=True)
  lines = [json.dumps({"confidence": c, "correct": k == 1, "task": NAMES[g]}) for c, k, g in rows]
  path.write_text("\n".join(lines))
  return str(path)


@pytest.mark.slow
def test_the_command_stores_what_apply_gives_and_says_what_is_missing(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr("calib_jax.evaluation.reports.outputs.missing_for_figures", lambda: ["matplotlib"])
  val, test = (_written(tmp_path / f"{name}.jsonl", seed, DIFFERENT) for seed, name in enumerate(("val", "test")))
  out = tmp_path / "out"
  command = ["--fit", val, "--test", test, "--fit_by=task", "--calibrators=platt", "--num_resamples=20"]
  assert evaluate.main([*command, f"--out={out}", "--save_probs"]) == 0
  assert capsys.readouterr().out.strip().startswith("Use platt by task: ")
  options = [f"--calibrator={out / 'calibrator.npz'}", f"--out={tmp_path / 'new.npz'}"]
  assert apply.main([*options, f"--predictions={test}"]) == 0
  assert "by platt, fitted to each task." in capsys.readouterr().out
  with np.load(tmp_path / "new.npz") as new, np.load(out / "probs/test_platt by task.npz") as saved:
    np.testing.assert_allclose(new["confidence"], saved["confidence"], rtol=1e-5)
  (tmp_path / "none.jsonl").write_text('{"confidence": 0.5}\n')
  assert apply.main([*options, f"--predictions={tmp_path / 'none.jsonl'}"]) == 2
  assert "was fitted to each task, and the predictions have no column task: add it." in capsys.readouterr().err
  (tmp_path / "new.jsonl").write_text('{"confidence": 0.5, "task": "x"}\n')
  assert apply.main([*options, f"--predictions={tmp_path / 'new.jsonl'}"]) == 0
  assert "was not fitted to task x, so that these rows have that of all examples" in capsys.readouterr().err
  assert evaluate.main([*command, "--risk=0.3", f"--out={tmp_path / 'cut'}"]) == 0
  uses = json.loads((tmp_path / "cut/results.json").read_text())["uses"]["test"]
  assert "without its fold" in uses["platt by task"]["chosen_on"] and uses["platt by task"]["accepted"] > 0.3
  cut = f"--cut={uses['platt by task']['cut']}"
  assert evaluate.main([*command, "--risk=0.3", cut, f"--out={tmp_path / 'again'}"]) == 0
  assert "--cut belongs to the confidences of platt by task." in capsys.readouterr().err
  again = json.loads((tmp_path / "again/results.json").read_text())["uses"]["test"]["platt by task"]
  assert again["accepted"] == uses["platt by task"]["accepted"]


def test_a_calibrator_that_cannot_be_fitted_to_parts_is_named():
  def fit(logits, labels, *, weights=None):
    if weights is not None:
      raise NoWeights("mine takes no weights.")
    return _share(logits, labels)

  sentences = []
  fitted = evaluation.fit([_part(0, DIFFERENT)], {"mine": calibrators.Calibrator(fit, SHARE.apply)}, sentences.append,
                          "task")
  assert list(fitted) == ["mine"] and sentences == ["caution: mine is not fitted by task: mine takes no weights."]
