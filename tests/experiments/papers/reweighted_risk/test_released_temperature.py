"""The temperature of the code released with Zhou et al. is that of its steps, and that of Meta-Cal too."""

import jax
import numpy as np
import pytest

from calib_jax import calibrators
from experiments.papers.reweighted_risk import released_temperature


def _predictions(num_examples, num_classes, shift, scale):
  labels = np.arange(num_examples) % num_classes
  noise = np.sin(np.arange(num_examples * num_classes) ** 2 % 1000).reshape(num_examples, num_classes)
  return (scale * (noise + shift * np.eye(num_classes)[labels])).astype(np.float32), labels


# Of torch.optim.LBFGS([T], lr=0.01, max_iter=STEPS) on CrossEntropyLoss of logits / T in float32, from T = 1.5, as the
# released code calls it; PyTorch 2.13.0 on a CPU, November 2026.
# Of the last two, one begins with a gradient above 1, and the other ends where a step does not change the float32 loss.
@pytest.mark.parametrize(("made_of", "steps", "expected"), [
  ((1000, 10, 1.5, 4.0), 50, 1.121723), ((1000, 10, 1.5, 4.0), 2000, 0.894988), ((500, 5, 0.5, 3.0), 50, 1.716263),
  ((1000, 10, 1.5, 200.0), 50, 1.922558), ((1000, 10, 1.5, 6.7), 50, 1.499983)])
def test_it_is_that_of_pytorch(made_of, steps, expected):
  logits, labels = _predictions(*made_of)
  tolerance = 1e-5 if steps == 50 else 1e-3  # Rounding decides where the 2,000 end.
  np.testing.assert_allclose(released_temperature.temperature(logits, labels, steps), expected, atol=tolerance)


def test_meta_calibration_has_the_threshold_of_the_library_and_the_temperature_of_what_lies_below():
  logits, labels = _predictions(1000, 10, 1.5, 4.0)
  params = released_temperature.meta_calibration(constraint="miscoverage", target=0.05).fit(logits, labels)
  ours = calibrators.meta_calibration("miscoverage", target=0.05).fit(logits, labels)
  assert params["threshold"] == ours["threshold"]
  probs = np.asarray(jax.nn.softmax(logits))
  entropy, right = -np.sum(probs * np.log(probs), axis=1), np.argmax(logits, axis=1) == labels
  gives_threshold = np.random.default_rng(0).permutation(np.flatnonzero(right))[:np.sum(right) // 10]
  below = (entropy < float(params["threshold"])) & ~np.isin(np.arange(1000), gives_threshold)
  expected = released_temperature.temperature(logits[below], labels[below])
  assert params["temperature"] == np.float32(expected) != ours["temperature"]
  assert released_temperature.temperature(logits[:0], labels[:0]) == 1.5
