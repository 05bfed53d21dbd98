"""Losses against the code that their authors released: released.npz holds values and gradients for one or two batches.

* ``selective_risk SCORE κ ν``: what the code of Zhou et al. 2025 (han678/CalibWeightedRisk, run in November 2026) gave
  for the batches ``logits`` ``[2, 128, 10]`` of an epoch, whose counts add up, with 64 bins. It has gradients of two
  of the settings.
* ``mmce`` and ``mmce weighted`` (Mukhoti et al. 2020), ``class_adaptive_label_smoothing`` (Liu et al. 2023, with
  ``multipliers``, ``curvature`` and a margin of 2) and ``dual_focal competitor`` (Lin et al. 2025, γ = 3): the formulas
  of the authors' code in float64 NumPy, apart from this package, for ``small logits`` ``[48, 6]``. The losses are means
  over the batch, and gradients are central differences, extrapolated to a step of 0.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases, references

RELEASED = dict(np.load(pathlib.Path(__file__).parent / "released.npz"))
SMALL = RELEASED["small logits"], RELEASED["small labels"].astype(int)


@pytest.mark.parametrize("score", ["negative_entropy", "msp", "margin"])
def test_selective_risk(score):
  @jax.jit
  def step(state, z, y, kappa, nu):
    value, gradient = jax.value_and_grad(losses.selective_risk)(
      z, y, variant="released", confidence=score, low_confidence_coverage=kappa, smoothing=nu, counts=state.counts)
    return (value, gradient), losses.update_selective_risk(state, z, variant="released", confidence=score)

  for kappa, nu in ((0.8, 0.1), (0.25, 0.05)):
    name, state = f"selective_risk {score} {kappa} {nu}", losses.init_selective_risk()
    for i, batch in enumerate(zip(RELEASED["logits"], RELEASED["labels"].astype(int), strict=True)):
      (value, gradient), state = step(state, *batch, kappa, nu)
      np.testing.assert_allclose(value, RELEASED[f"{name} value"][i], rtol=1e-6)
      if score == "negative_entropy":  # Cross entropy times a constant, also in the code.
        constant, (z, y) = {0.1: 0.73297, 0.05: 0.77432}[nu], batch
        p, onehot = references.softmax(z.astype(float)), np.eye(10)[y]
        np.testing.assert_allclose(value, constant * references.cross_entropy(z, onehot).mean(), rtol=1e-5)
        np.testing.assert_allclose(gradient, constant * (p - onehot) / len(y), rtol=1e-4, atol=1e-7)
      elif f"{name} gradient" in RELEASED:
        expected = RELEASED[f"{name} gradient"][i]
        assert np.linalg.norm(gradient - expected) < 1e-6 * np.linalg.norm(expected)


def test_mmce_adds_1e_10_under_the_root_and_is_0_without_a_correct_example():
  # One example is right and sure, and the others are wrong with a confidence of 1/2: v is 0 and -0.5/511².
  logits, labels = np.tile([0, 0, -np.inf], (512, 1)), np.ones(512, int)
  logits[0], labels[0] = [50, 0, -np.inf], 0
  loss = cases.step("mmce", {"weighted": True, "variant": "released"})
  np.testing.assert_allclose(loss(logits, labels)[0], ((0.5 / 511)**2 + 1e-10)**0.5, rtol=1e-5)
  assert loss(logits, np.ones(512, int))[0] == 0


@pytest.mark.parametrize(("name", "loss"), [
  ("mmce", losses.get("mmce", variant="released")),
  ("mmce weighted", losses.get("mmce", weighted=True, variant="released")),
  ("class_adaptive_label_smoothing", losses.get("class_adaptive_label_smoothing", margin=2.0, **{
    key: RELEASED[key] for key in ("multipliers", "curvature")})),
  ("dual_focal competitor", losses.get("dual_focal", gamma=3.0, competitor="strongest_below",
                                       stop_gradient="competitor"))])
def test_formulas(name, loss):
  value, gradient = jax.jit(jax.value_and_grad(lambda z: jnp.mean(loss(z, SMALL[1]))))(SMALL[0])
  np.testing.assert_allclose(value, RELEASED[f"{name} value"], rtol=2e-6)
  expected = RELEASED[f"{name} gradient"]
  assert np.linalg.norm(gradient - expected) < 1e-5 * np.linalg.norm(expected)
