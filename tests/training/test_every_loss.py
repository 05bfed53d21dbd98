"""Every registered loss is taken by its name in a config, and those with a state or of a batch train by the command."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import config as run_config
from calib_jax import losses, run, training
from calib_jax.training import loss_state

pytestmark = pytest.mark.usefixtures("no_figures")
OPTIONS = {"avuc": ("threshold=0.5",)}  # The only option without a default.
SMALL = ("data.name=digits", "model.hidden=(4,)", "num_seeds=1", "compare_with_cross_entropy=false",
         "training.num_steps=3", "training.batch_size=64", "evaluation.num_resamples=2", "training.select=best")


def _config(*overrides):
  config = run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in (*SMALL, *overrides)])
  config.unlock()
  config.evaluation.calibrators = {"TS": {"name": "temperature_scaling", "objective": "nll"}}
  run_config.check(config.lock(), 1)
  return config


def _with(role, name):
  """The config with the loss of that name in one role, and a plain one or none in the other."""
  other = "loss.primary.name=cross_entropy" if role == "secondary" else "loss.secondary.name="
  return _config(other, f"loss.{role}.name={name}", *(f"loss.{role}.{option}" for option in OPTIONS.get(name, ())))


def test_a_name_alone_gives_a_loss_with_a_gradient():
  logits, labels = jax.ShapeDtypeStruct((12, 3), jnp.float32), jnp.arange(12) % 3
  for role, names in (("primary", (*losses.PER_EXAMPLE, *losses.PER_BATCH)), ("secondary", losses.PER_BATCH)):
    for name in names:
      loss = _with(role, name).loss
      states = {key: update.init() for key, update in training.of_loss(loss, 3).items()}
      gradient = jax.eval_shape(jax.grad(lambda z, loss=loss, states=states: training.objective(loss)(
        z, labels, loss_states=states)[0]), logits)
      assert gradient.shape == (12, 3), (role, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["selective_risk", "class_adaptive_label_smoothing"])
def test_it_trains_for_a_few_steps(name, tmp_path, capsys):
  """Losses with a state, of which the first is of a whole batch."""
  config = _with("primary", name)
  run.execute(config, tmp_path / "run")
  rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  measured = {key: value for row in rows for key, value in row.items() if isinstance(value, float)}
  assert measured and all(np.isfinite(value) for value in measured.values())
  assert (tmp_path / "run" / "results.json").exists()
  # What the validation split is scored by is said, and a loss of a whole batch is not.
  assert ("by the NLL of the validation split" in capsys.readouterr().out) == (name in losses.PER_BATCH)
  loaded = run.Run.load(tmp_path / "run").config.loss
  assert loaded.to_dict() == config.loss.to_dict()


@pytest.mark.parametrize("name", ["cross_entropy", "adaptive_focal"])
def test_mixed_labels_are_the_mean_over_both_classes(name):
  """As Zhang et al. 2018 define it. Brier's and the focal loss have formulas for distributions, which are others."""
  loss = _config(f"loss.primary.name={name}", "loss.secondary.name=").loss
  objective, states = training.objective(loss), {k: v.init() for k, v in training.of_loss(loss, 3).items()}
  logits = jnp.array([[2.0, -1.0, 0.5], [0.1, 0.3, -2.0], [9.0, 0.0, 1.0]])
  mixed = jnp.array([[0.7, 0.0, 0.3], [0.4, 0.6, 0.0], [0.0, 1.0, 0.0]])  # The last is of two images of one class.

  result = jax.jit(jax.value_and_grad(lambda z: objective(z, mixed, loss_states=states)[0]))(logits)
  @jax.jit
  @jax.value_and_grad
  def expected(logits):
    return sum(share * objective(logits[i:i + 1], jnp.array([label]), loss_states=states)[0]
               for i, label, share in ((0, 0, 0.7), (0, 2, 0.3), (1, 1, 0.6), (1, 0, 0.4), (2, 1, 1.0))) / 3

  for one, other in zip(result, expected(logits), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_selective_risk_warns_of_weights_with_a_gradient_and_of_a_constant_times_cross_entropy():
  score_counts = loss_state.score_counts
  assert "caution: selective_risk with variant='clamped'" in score_counts(3, variant="clamped").caution
  assert "is a constant times cross entropy" in score_counts(3, confidence="negative_entropy").caution
  assert not score_counts(3).caution and not score_counts(3, variant="stopped", confidence="negative_entropy").caution


def test_options_of_selective_risk_are_set_from_the_command_line():
  config = _config("loss.primary.name=selective_risk", "loss.primary.accumulate_counts=false",
                   "loss.primary.confidence=margin", "loss.primary.score_range=(0.1, 1.0)", "loss.primary.loss=focal")
  section = config.loss.primary.to_dict()
  assert section == {"name": "selective_risk", "low_confidence_coverage": 0.9, "smoothing": 0.1, "num_bins": 64,
                     "confidence": "margin", "score_range": (0.1, 1.0), "loss": "focal", "variant": "released",
                     "accumulate_counts": False}
