"""Calibrators by subgroup: fits against their definition, what is selected where the truth is known, the commands."""

import json

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax.cli import apply, evaluate
from calib_jax.predictions.predictions import Predictions, Subgroups

SIZES, NAMES = (400, 300, 300, 8), ("a", "b/c", "d", "few")


def _draw(seed, offsets, sizes=SIZES):
  """Records whose log-odds are too high by the offset of their subgroup: confidences, outcomes and subgroups."""
  rng, number = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
  odds = 1 + 1.2 * rng.normal(size=len(number))
  outcome = rng.random(len(number)) < 1 / (1 + np.exp(np.array(offsets)[number] - odds))
  return odds, outcome.astype(np.int32), number


def _part(seed, offsets):
  odds, outcome, number = _draw(seed, offsets)
  return Predictions(np.stack([0 * odds, odds], 1).astype(np.float32), outcome, records=True,
                     subgroups={"task": Subgroups(NAMES, number.astype(np.int32))})


def _loss(fitted, label, part):
  source, = evaluation.calibrated(fitted, label, [part])
  return -float(np.mean(source.log_probs()[np.arange(len(part.labels)), part.labels]))


def test_the_fit_of_a_subgroup_has_n0_more_examples_that_are_all_of_them():
  part, said = _part(0, (0, 2, -2, 0)), []
  calibrator, params = evaluation.fit([part], {"TS": calibrators.temperature_scaling()}, said.append,
                                      "task")["TS by task"]
  n0, base = params[0]["n0"], calibrator.options["base"]
  assert f"all examples count as {n0:g} more of each task" in said[-1] and f"few {800 / (8 + n0):.0f}%" in said[-1]
  number, copies = part.subgroups["task"].number, round(len(part.labels) / n0 * 30)
  for k, name in enumerate(NAMES):  # In whole numbers: 1 of 30 is one copy of each example.
    rows = np.concatenate([np.repeat(np.flatnonzero(number == k), copies), np.repeat(np.arange(len(number)), 30)])
    expected = base.fit(part.logits[rows], part.labels[rows])["temperature"]
    np.testing.assert_allclose(params[0]["own"][name]["temperature"], expected, rtol=0.02)


def test_subgroups_that_are_alike_have_one_calibrator_and_others_their_own():
  fitted_to_alike = 0
  for seed in range(6):
    alike = evaluation.fit([_part(seed, (1, 1, 1, 1))], {"platt": calibrators.platt()}, lambda text: None, "task")
    fitted_to_alike += "platt by task" in alike
    differ = evaluation.fit([_part(seed, (0, 2, -2, 0))], {"platt": calibrators.platt()}, lambda text: None, "task")
    new = _part(100 + seed, (0, 2, -2, 0))
    assert _loss(differ, "platt by task", new) < _loss(differ, "platt", new) - 0.02
  assert fitted_to_alike <= 2


def test_subgroups_that_were_not_fitted_have_the_calibrator_of_all():
  part = _part(0, (0, 2, -2, 0))
  fitted = evaluation.fit([part], {"platt": calibrators.platt()}, lambda text: None, "task")
  new = part._replace(subgroups={"task": Subgroups(("new",), np.zeros(len(part.labels), np.int32))})
  assert _loss(fitted, "platt by task", new) == pytest.approx(_loss(fitted, "platt", new), rel=1e-6)


def _written(path, seed, offsets):
  odds, outcome, number = _draw(seed, offsets)
  rows = zip((1 / (1 + np.exp(-odds))).tolist(), outcome.tolist(), number.tolist(), strict=True)
  lines = [json.dumps({"confidence": c, "correct": k == 1, "task": NAMES[g]}) for c, k, g in rows]
  path.write_text("\n".join(lines))
  return str(path)


def test_the_command_stores_what_apply_gives_and_says_what_is_missing(tmp_path, capsys):
  val, test = (_written(tmp_path / f"{name}.jsonl", seed, (0, 2, -2, 0)) for seed, name in enumerate(("val", "test")))
  out = tmp_path / "out"
  command = ["--fit", val, "--test", test, "--fit_by=task", "--num_resamples=20"]
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
  assert evaluate.main([*command, "--risk=0.1"]) == 2
  assert "--fit_by needs --fit and --test, and cannot be combined" in capsys.readouterr().err


def test_a_calibrator_that_cannot_be_fitted_to_parts_is_named():
  said = []
  fitted = evaluation.fit([_part(0, (0, 2, -2, 0))], {"cross": calibrators.venn_abers("cross")}, said.append, "task")
  assert list(fitted) == ["cross"] and "caution: cross is not fitted by task: venn_abers" in said[-1]
