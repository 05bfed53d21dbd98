"""Ensembles: the mean of probabilities, its rows in tables, its spread, from files."""

import json

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.predictions import ensembles

N, K, S = 300, 4, 3
LABELS = np.random.default_rng(0).integers(0, K, N).astype(np.int32)


def _members(seed):
  rng = np.random.default_rng(seed)
  clean = 2.5 * np.eye(K)[LABELS] + rng.normal(size=(N, K))
  return [(2.0 * (clean + rng.normal(size=(N, K)))).astype(np.float32) for _ in range(S)]


def _softmax(logits):
  return special.softmax(logits.astype(np.float64), axis=1)


def test_the_mean_of_probabilities_and_the_members_spread():
  members = _members(1)
  members[0][0], members[1][0] = [1e4, 0, 0, 0], [0, -np.inf, 0, 0]
  pooled = ensembles.pooled([evaluation.Predictions(z, LABELS) for z in members])
  probs = np.stack([_softmax(z) for z in members])
  np.testing.assert_allclose(np.exp(pooled.logits), probs.mean(0), rtol=2e-6, atol=1e-7)
  entropy_of_mean, mean_entropy = special.entr(probs.mean(0)).sum(-1), special.entr(probs).sum(-1).mean(0)
  np.testing.assert_allclose(pooled.spread, entropy_of_mean - mean_entropy, atol=1e-6)
  assert pooled.spread.min() >= 0
  alone = ensembles.pooled([evaluation.Predictions(members[2], LABELS)])
  np.testing.assert_allclose(np.exp(alone.logits), probs[2], rtol=2e-6, atol=1e-7)
  np.testing.assert_allclose(alone.spread, 0, atol=1e-6)
  with pytest.raises(UserError, match="needs at least one member"):
    ensembles.pooled([])
  with pytest.raises(UserError, match="member 2 has other labels"):
    ensembles.pooled([evaluation.Predictions(members[0], LABELS), evaluation.Predictions(members[1], LABELS[::-1])])


def _nll(probs):
  return -np.log(probs[np.arange(N), LABELS]).mean()


def test_files_of_members_are_pooled_then_calibrated_and_calibrated_then_pooled(no_figures, tmp_path, capsys):
  paths = {}
  for split, seed in (("val", 2), ("test", 3), ("noise", 4)):
    for i, z in enumerate(_members(seed)):
      scores = z if split != "noise" else np.random.default_rng(i).normal(size=z.shape).astype(np.float32)
      paths.setdefault(split, []).append(str(tmp_path / f"{split}{i}.npz"))
      np.savez(paths[split][-1], logits=scores, labels=LABELS)
  arguments = ["--fit", *paths["val"], "--test", *paths["test"], "--ood", *paths["noise"], "--ensemble",
               "--calibrators", "temperature_scaling", "--num_resamples=20", "--json=-"]
  assert command.main([*arguments, f"--out={tmp_path / 'out'}"]) == 0
  content = json.loads(capsys.readouterr().out)
  rows = content["results"]["test0"]
  names = "members", "members, ensemble of 3", "members, ensemble of 3, temperature_scaling of each"
  assert {name: list(row) for name, row in rows.items()} == dict(zip(names, (
    ["none", "temperature_scaling"], ["none", "temperature_scaling"], ["none"]), strict=True))
  probs = np.stack([_softmax(z) for z in _members(3)])
  temperature = calibrators.temperature_scaling()
  of_each = [np.exp(temperature.apply(temperature.fit(validation, LABELS), test))
             for validation, test in zip(_members(2), _members(3), strict=True)]
  pooled = [np.log(np.mean([_softmax(z) for z in _members(seed)], axis=0)) for seed in (2, 3)]
  calibrated = np.exp(temperature.apply(temperature.fit(pooled[0], LABELS), pooled[1]))
  for name, label, expected in ((names[0], "none", np.mean([_nll(p) for p in probs])),
                                (names[1], "none", _nll(probs.mean(0))),
                                (names[2], "none", _nll(np.mean(of_each, axis=0))),
                                (names[1], "temperature_scaling", _nll(calibrated))):
    np.testing.assert_allclose(rows[name][label]["nll"]["value"], expected, rtol=1e-5)
  scores = content["detection"]["noise0"]
  assert "negative_spread" in scores[names[1]]["none"] and "negative_spread" not in scores[names[0]]["none"]
  assert (tmp_path / "out/calibrators/temperature_scaling.npz").exists()
  np.savez(tmp_path / "one.npz", logits=_members(2)[0], labels=np.ones(N, np.int32))
  equal = str(tmp_path / "one.npz")
  for wrong, sentences in ((["--test", *paths["test"][:1]], ["one file of each member, two or more"]),
                           (["--fit", *paths["val"][:2], "--test", *paths["test"]], ["one file of each member"]),
                           (["--test", paths["test"][0], equal], [f"{equal} must have the same examples as"]),
                           (["--test", *paths["test"], "--task=binary"], ["goes without --compare and --task"]),
                           (["--fit", equal, equal, "--test", *paths["test"][:2]], [
                             "--fit 1: all labels are 1, so no calibrator can be fitted.",
                             "warning: --fit 2 and --fit 1 hold the same predictions."])):
    assert command.main([*wrong, "--ensemble"]) == 2
    errors = capsys.readouterr().err
    assert all(sentence in errors for sentence in sentences)
  assert command.main(["--fit", *paths["val"], "--test", *paths["test"]]) == 2
  assert "--fit must be one file, or with --ensemble one of each member: got 3" in capsys.readouterr().err
