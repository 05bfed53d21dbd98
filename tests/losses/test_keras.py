"""Losses that Keras 3 trains with on JAX."""

import jax
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases
from tests.programs import python

LOGITS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2])
FORMS = {"numbers": LABELS.astype(np.float32), "a column": LABELS[:, None].astype(np.float32), "integers": LABELS,
         "one-hot": np.eye(3, dtype=np.float32)[LABELS]}


def test_labels_in_every_form_of_keras_give_the_loss_of_integers():
  values = jax.jit(lambda forms: [losses.keras("focal")(forms[form], LOGITS) for form in FORMS])(FORMS)
  for form, actual in zip(FORMS, values, strict=True):
    np.testing.assert_allclose(actual, cases.reference("focal", LOGITS, LABELS, {}), rtol=1e-5, err_msg=form)
  actual = jax.jit(losses.keras("soft_binned_ece", num_bins=5))(FORMS["a column"], LOGITS)
  expected = cases.reference("soft_binned_ece", LOGITS, LABELS, {"num_bins": 5})
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_what_is_no_class_is_nan_and_shapes_that_do_not_fit_are_refused():
  values = jax.jit(losses.keras("cross_entropy"))(np.array([0, 2, 1, 1, 0, 0.5], np.float32), LOGITS)
  assert np.isnan(values[-1]) and np.isfinite(values[:-1]).all()
  with pytest.raises(ValueError, match="labels"):
    losses.keras("cross_entropy")(np.zeros((6, 2), np.float32), LOGITS)
  with pytest.raises(TypeError, match="no option"):
    losses.keras("focal", gama=1.0)


PROGRAM = """
import keras, numpy as np
from calib_jax import losses
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
y = (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0)
model = keras.Sequential([keras.layers.Dense(3)])
model.compile(optimizer=keras.optimizers.SGD(0.5), loss=losses.keras("focal", gamma=1.0))
history = model.fit(x, y, batch_size=64, epochs=4, verbose=0).history["loss"]
mean = float(losses.focal(np.asarray(model(x)), y, gamma=1.0).mean())
assert history[-1] < 0.7 * history[0], history
assert abs(model.evaluate(x, y, batch_size=256, verbose=0) - mean) < 1e-6
weights = (y == 1).astype("float32")
weighted = float((losses.focal(np.asarray(model(x)), y, gamma=1.0) * weights).mean())
given = model.evaluate(x, y, batch_size=256, sample_weight=weights, verbose=0)
assert abs(given - weighted) < 1e-6, (given, weighted)
"""


@pytest.mark.slow
def test_a_model_of_keras_trains_and_its_loss_is_that_of_the_formula(tmp_path):
  pytest.importorskip("keras")
  done = python("-c", PROGRAM, tmp_path=tmp_path, KERAS_BACKEND="jax")
  assert done.returncode == 0, done.stderr
