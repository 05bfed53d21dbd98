"""Calls for ``test_types.py``, which are not run: a type checker must report the lines that end in ``# wrong``."""

import functools

import jax
import jax.numpy as jnp
import optax

from calib_jax import calibrators, confidence, losses, metrics


def of_losses(logits: jax.Array, labels: jax.Array, where: jax.Array, gamma: jax.Array) -> None:
  losses.focal(logits, labels, gamma=2, where=where)
  losses.focal(logits, labels, gamma=gamma)
  losses.focal(logits, labels, gama=2)  # wrong
  losses.focal(logits, labels, 2.0)  # wrong
  losses.focal(gamma=2)  # wrong
  losses.get("focal", gamma=gamma)(logits, labels, where=where)
  losses.get("focal", gama=2)  # wrong
  losses.get("focall")  # wrong
  losses.get("avuc")  # wrong
  losses.get("focal")(logits, labels, were=where)  # wrong
  losses.get("focal")(logits, labels, axis_name="batch")  # wrong
  losses.get("soft_avuc", axis_name="batch")(logits, labels, weights=where)
  losses.brier(logits, labels, gamma=2)  # wrong
  losses.avuc(logits, labels, threshold=0.5)
  losses.avuc(logits, labels)  # wrong
  losses.soft_binned_ece(logits, labels, num_bins=20, weights=where, axis_name="batch")
  losses.soft_binned_ece(logits, labels, num_bins="20")  # wrong
  losses.soft_avuc(logits, labels, treshold=0.5)  # wrong
  functools.partial(losses.mmce, kernel_width=0.2)(logits, labels)
  losses.two_class(logits).reshape(-1, 2)
  losses.focal(logits, labels).reshapes(-1)  # wrong


def of_composite(logits: jax.Array, labels: jax.Array, weight: jax.Array) -> None:
  total, parts = losses.composite("focal", losses.soft_avuc, weight=weight)(logits, labels)
  jnp.add(total, parts["primary"])
  losses.composite("focal", "soft_avuc", weigth=0.3)  # wrong
  losses.composite("focall")  # wrong
  losses.composite("focal", "focal")  # wrong
  losses.composite("selective_risk", reduction="sum")(logits, labels, where=labels != -100, axis_name="batch")
  losses.composite("focal", losses.get("soft_avuc", threshold=weight))(logits, labels, were=weight)  # wrong
  losses.composite(optax.softmax_cross_entropy_with_integer_labels, functools.partial(losses.mmce, weighted=True))


def of_the_rest(logits: jax.Array, labels: jax.Array) -> None:
  calibrator = calibrators.temperature_scaling(objective="nll")
  calibrator.apply(calibrator.fit(logits, labels), logits)
  calibrators.temperature_scaling(objectiv="nll")  # wrong
  calibrators.histogram_binning(num_bins=15, binning="equal_mass")
  calibrators.histogram_binning(bins=15)  # wrong
  calibrator.aply(None, logits)  # wrong
  metrics.expected_calibration_error(jax.nn.softmax(logits), labels, num_bins=15)
  metrics.expected_calibration_error(jax.nn.softmax(logits), labels, num_bin=15)  # wrong
  confidence.msp(logits, 1)  # wrong
