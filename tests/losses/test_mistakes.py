"""Names, options, and what is refused and how."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks
from calib_jax import calibrators, losses, metrics
from calib_jax.losses import catalogue
from tests.losses import cases
from tests.losses.cases import FLOATS, INTS


@pytest.mark.parametrize("loss", [losses.aurc, losses.selective_risk])
def test_selective_losses_refuse_a_loss_or_score_that_is_not_one_value_per_example(loss):
  with pytest.raises(ValueError, match=r"loss must return one value per example, shape \(4,\): it returned shape \(\)"):
    jax.eval_shape(lambda z: loss(z, INTS, loss=losses.soft_avuc), FLOATS)
  with pytest.raises(ValueError, match=r"confidence must return one value per example.* it returned shape \(4, 3\)"):
    jax.eval_shape(lambda z: loss(z, INTS, confidence=lambda p: p, score_range=(0, 1)) if loss is losses.selective_risk
                   else loss(z, INTS, confidence=lambda p: p), FLOATS)


def test_every_loss_is_registered_under_its_name_and_lists_its_options():
  registered = {**losses.PER_EXAMPLE, **losses.PER_BATCH}
  assert set(registered) == set(cases.FIRST) and all(getattr(losses, name) is f for name, f in registered.items())
  assert losses.options("brier") == {}
  assert losses.options("selective_risk")["confidence"] == "msp"
  assert losses.options("avuc") == {"threshold": inspect.Parameter.empty, "stop_gradient": False}
  for name, loss in registered.items():
    arguments = [p for p in inspect.signature(loss).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in arguments] == ["logits", "labels"]
    assert not {"where", "weights", "axis_name"} & set(losses.options(name))
  with pytest.raises(ValueError, match="loss name must be one of"):
    losses.options("fokal")


@pytest.mark.parametrize("name", cases.FIRST)
def test_a_call_with_options_alone_says_what_to_write(name):
  options = cases.FIRST[name]
  with pytest.raises(TypeError, match=f"^{name} takes logits and labels, and got none: losses.get\\('{name}'") as error:
    getattr(losses, name)(**options)
  assert all(f"{option}={value!r}" in str(error.value) for option, value in options.items())
  with pytest.raises(TypeError, match=f"{name}\\(\\) got an unexpected keyword argument 'gama'"):
    getattr(losses, name)(FLOATS, INTS, gama=2)


@pytest.mark.parametrize("name", [*cases.FIRST, "composite"])
def test_labels_out_of_range_are_refused_where_they_can_be_read(name):
  loss = losses.composite("focal", "mmce") if name == "composite" else losses.get(name, **cases.FIRST[name])
  padded = np.array([0, -100, 2, 3])
  message = (r"labels must be in \[0, 3\): 2 of 4 rows are not; the first, row 1, holds -100 \(rows to ignore are left "
             r"out by where=labels != -100, which losses, metrics and fits take\)\.")
  for labels in (padded, jnp.asarray(padded, jnp.int32)):  # Also within jit, where the logits alone are traced.
    with pytest.raises(ValueError, match=message):
      jax.eval_shape(lambda z, y=labels: loss(z, y), FLOATS)
  with pytest.raises(ValueError, match="1 of 4 rows is not; the first, row 3, holds 4294967297"):
    jax.eval_shape(lambda z: loss(z, np.array([0, 1, 2, 2**32 + 1])), FLOATS)  # Its lowest 32 bits are 1.
  counts = np.array([True, False, True, False])
  jax.eval_shape(lambda z: loss(z, padded, where=counts), FLOATS)
  with pytest.raises(ValueError, match="1 of 4 rows is not; the first, row 3, holds 3"):
    jax.eval_shape(lambda z: loss(z, padded, where=padded != -100), FLOATS)


def test_labels_that_are_not_checked_are_nan():
  checks.check_values(False)
  try:
    for labels in (np.array([0, -100, 2, 1]), np.array([0, 2**32 + 1, 2, 1])):
      values = jax.jit(lambda z, y=labels: losses.brier(z, y))(FLOATS)
      np.testing.assert_array_equal(np.isnan(values), [False, True, False, False])
  finally:
    checks.check_values(True)


OUT_OF_RANGE = {
  "cross_entropy": {"label_smoothing": 1.5}, "brier_weighted_cross_entropy": {"gamma": -1, "norm": 0.5},
  "focal": {"gamma": -1}, "inverse_focal": {"gamma": -1}, "dual_focal": {"gamma": -1},
  "properized_focal": {"gamma": -0.1}, "square": {"true_class_weight": -1},
  "margin_label_smoothing": {"margin": -1, "weight": -1}, "class_adaptive_label_smoothing": {"margin": 0},
  "adaptive_conditional_label_smoothing": {"margin": -1, "weight": -1, "positive_weight": -1, "negative_weight": -1},
  "pairwise_constraints": {"discrimination_weight": -1, "exclusion_weight": -1},
  "soft_binned_ece": {"num_bins": 0, "temperature": 0, "norm": 0.5, "low": 1.0},
  "soft_binned_marginal_ece": {"num_bins": 0, "temperature": 0, "norm": 0.5},
  "soft_avuc": {"threshold": 1.0, "temperature": 0}, "avuc": {"threshold": -1},
  "mmce": {"kernel_width": 0}, "kde_ece": {"bandwidth": 0, "norm": 0.5},
  "selective_risk": {"low_confidence_coverage": 1.5, "smoothing": 0, "num_bins": 0, "score_range": (1.0, 0.0),
                     "counts": np.zeros(16)}}


@pytest.mark.parametrize("name", [name for name in cases.FIRST if losses.options(name)])
def test_every_option_refuses_what_is_not_of_its_kind_or_out_of_its_range(name):
  wrong = {float: "2", bool: 2, int: 1.5, str: "?"}
  options = {option: wrong[type(default)] for option, default in losses.options(name).items()
             if type(default) in wrong and option != "last_constraints"}
  for option, value in [*options.items(), *OUT_OF_RANGE.get(name, {}).items()]:
    with pytest.raises((TypeError, ValueError), match=f"{option} must "):
      jax.eval_shape(lambda z, o=option, x=value: losses.get(name, **{**cases.FIRST[name], o: x})(z, INTS), FLOATS)


BINS, CLASSES = losses.init_adaptive_focal(), losses.init_class_adaptive(2)


def _own(logits, labels, *, where, axis_name):
  return jnp.zeros(())


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: losses.focal(FLOATS, INTS, gamma=-1), ValueError, r"gamma must be in \[0, inf\): got -1"),
  (lambda: losses.focal(FLOATS, INTS, gamma="2"), TypeError, "gamma must be a number: got '2'"),
  (lambda: losses.sample_dependent_focal(FLOATS, INTS, thresholds=(0.5, 0.2), gammas=(1, 2, 3)), ValueError, "ascend"),
  (lambda: losses.sample_dependent_focal(FLOATS, INTS, gammas=(1,)), ValueError, "gammas must be one more than thresh"),
  (lambda: losses.sample_dependent_focal(FLOATS, INTS, gammas=(1, -1)), ValueError,
   r"gammas must be in \[0, inf\): got -1"),
  (lambda: losses.soft_avuc(FLOATS, INTS, where=INTS), TypeError, "where must be boolean: got dtype int32"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, form="lable"), ValueError, "got 'lable'. Did you mean 'label'"),
  (lambda: losses.avuc(FLOATS, INTS), TypeError, "threshold"),
  (lambda: losses.aurc(FLOATS, INTS, loss="focl"), ValueError,
   "loss must be one of .*'cross_entropy'.*Did you mean 'focal'"),
  (lambda: losses.selective_risk(FLOATS, INTS, confidence=lambda p: p[:, 0]), ValueError,
   "the range of .* is not known: give score_range"),
  (lambda: losses.focal(FLOATS.astype(int), INTS), TypeError, "logits must be floating point: got dtype int"),
  (lambda: losses.focal(FLOATS[0], INTS[:3]), ValueError, r"logits \(3,\) and labels \(3,\)\. Logits of binary "
   r"labels become \[\.\.\., 2\] by losses.two_class\(logits\)\."),
  (lambda: losses.soft_avuc(FLOATS, INTS[:, None] + INTS[:3]), ValueError, r"losses.two_class\(logits\)"),
  (lambda: losses.square(FLOATS[0], FLOATS[0]), TypeError, r"got dtype float32\. .* losses.two_class\(logits\)"),
  (lambda: losses.focal(FLOATS[:, :1], INTS), ValueError, r"at least 2 classes.*two_class\(logits\[\.\.\., 0\]\)"),
  (lambda: metrics.nll(FLOATS[0], INTS[:3]), ValueError, r"stack\(\[1 - probs, probs\].*losses.two_class"),
  (lambda: calibrators.temperature_scaling().fit(FLOATS[0], INTS[:3]), ValueError, "losses.two_class"),
  (lambda: losses.composite("focal")(FLOATS, INTS, axis_name="batch"), ValueError, "or leave axis_name out"),
  (lambda: losses.update_selective_risk(losses.init_selective_risk(), FLOATS, axis_name="i"), ValueError, "no mapped"),
  (lambda: losses.focal(FLOATS, INTS[:3]), ValueError, r"got logits \(4, 3\) and labels \(3,\)"),
  (lambda: losses.focal(FLOATS, FLOATS[:, :2]), ValueError, "float labels must have the shape of logits"),
  (lambda: losses.focal(FLOATS, INTS.astype(np.float32)), ValueError, "of logits, and labels.astype.* makes integers"),
  (lambda: losses.focal(FLOATS, INTS.astype(bool)), TypeError, "labels must be integers in .* got dtype bool"),
  (lambda: losses.get("soft_ece"), ValueError, "Did you mean 'soft_binned_ece'"),
  (lambda: losses.get("fokal"), ValueError, "must be one of .*'cross_entropy'.*Did you mean 'focal'"),
  (lambda: losses.get("focal", gama=2), TypeError, "focal has no option 'gama'; it has gamma, .* Did you mean 'gamma'"),
  (lambda: losses.get("avuc"), TypeError, r"avuc needs threshold, without a default: losses.get\('avuc', threshold=…"),
  (lambda: losses.composite("focal", "avuc"), TypeError, "avuc needs threshold"),
  (lambda: losses.update_adaptive_focal(BINS, np.ones((2, 2)), np.ones((2, 2))), ValueError, "confidence must have"),
  (lambda: losses.update_adaptive_focal(BINS, np.ones(2), np.ones(3)), ValueError, "correct must have the shape"),
  (lambda: losses.update_adaptive_focal(BINS, np.ones(2), np.ones(2), switch=-1), ValueError, "switch must be in"),
  (lambda: losses.update_adaptive_focal(BINS, np.ones(2), np.ones(2), gamma_min=3, gamma_max=1), ValueError,
   "gamma_min must not exceed gamma_max: got 3 and 1"),
  (lambda: losses.init_adaptive_focal(0), ValueError, "num_bins must be in"),
  (lambda: losses.adaptive_focal(FLOATS, INTS, gammas=BINS.gammas, bin_edges=BINS.gammas), ValueError,
   r"gammas must be \[B\] and bin_edges \[B \+ 1\]: got shapes \(15,\) and \(15,\)"),
  (lambda: losses.update_class_adaptive(CLASSES, 1, FLOATS), ValueError, r"logits must be \[N, 2\], one column"),
  (lambda: losses.update_class_adaptive(CLASSES, 1, FLOATS[:, :2], margin=0.0), ValueError, "margin must be in"),
  (lambda: losses.update_class_adaptive(CLASSES, 1, FLOATS[:, :2], growth=0.5), ValueError, "growth must be in"),
  (lambda: losses.init_class_adaptive(0), ValueError, "num_classes must be in"),
  (lambda: losses.init_class_adaptive(2, 0.0), ValueError, "curvature must be in"),
  (lambda: losses.class_adaptive_label_smoothing(FLOATS, INTS, **CLASSES._asdict()), ValueError,
   r"multipliers must be \[K\] or one number: got shape \(2,\) and logits \(4, 3\)"),
  (lambda: losses.class_adaptive_label_smoothing(FLOATS, INTS, curvature=CLASSES.curvature), ValueError,
   r"curvature must be \[K\] or one number"),
  (lambda: losses.composite(lambda z, y: z[:, 0], _own)(FLOATS, INTS, weights=INTS), ValueError,
   "secondary takes no weights"),
  (lambda: losses.composite(_own)(FLOATS, INTS, weights=INTS), ValueError, "primary takes no weights"),
  (lambda: losses.composite("focal", ["mmce", "aurc"]), TypeError,
   r"secondary must be one loss, by name or as a function: got \['mmce', 'aurc'\]"),
  (lambda: losses.composite("focal", reduction="max"), ValueError, "reduction must be one of 'mean', 'sum': got 'max'"),
  (lambda: losses.jensen_shannon_consistency(np.zeros(5)), ValueError,
   r"logits must be \[V, ..., K\], with at least one view on.*\(5,\)"),
  (lambda: losses.jensen_shannon_consistency(np.zeros((0, 2, 5))), ValueError,
   r"with at least one view on the first axis: got shape \(0, 2, 5\)"),
  (lambda: losses.jensen_shannon_consistency(np.zeros((3, 2, 5)), where=np.ones(3, bool)), ValueError, "where"),
])
def test_mistakes_are_named(call, error, message):
  for run in (call, jax.jit(call)):
    with pytest.raises(error, match=message):
      run()


@pytest.mark.parametrize(("labels", "way"), [
  (np.eye(3, dtype=np.float32)[np.arange(12) % 3], r"argmax\(-1\) makes integers of one-hot labels\. Some losses take"),
  (np.eye(3, dtype=np.int32)[np.arange(12) % 3], r"argmax\(-1\) makes integers of one-hot labels\. Probabilities of b"),
  (1 + np.arange(12) % 3, r"labels must be in \[0, 3\): 4 of 12 rows .* holds 3\. If they go from 1, pass labels - 1"),
])
def test_labels_of_another_form_have_a_way_out(labels, way):
  with pytest.raises((TypeError, ValueError), match=way):
    metrics.nll(np.full((12, 3), 1 / 3, np.float32), labels)


@pytest.mark.parametrize("name", ["focal", "soft_avuc"])
def test_probabilities_in_place_of_logits_are_warned_of(name):
  rng, labels = np.random.default_rng(0), np.arange(12) % 3
  probs = rng.dirichlet(np.ones(3), 12).astype(np.float32)
  with pytest.warns(UserWarning, match="logits look like probabilities .* and losses take logits") as warned:
    losses.get(name)(probs, labels)
  assert warned[0].filename == __file__
  with warnings.catch_warnings():
    warnings.simplefilter("error")  # Log-probabilities are logits, and two rows in [0, 1] may be chance.
    losses.get(name)(np.log(probs), labels), losses.get(name)(probs[:2], labels[:2])
    jax.jit(losses.get(name))(probs, labels)


def test_a_loss_outside_of_jit_is_one_program_with_the_value_and_the_refusals_of_its_operations():
  (logits, labels), compiled = cases.data(37, 5), catalogue._compiled._cache_size()
  for options in ({}, {"threshold": 0.3}):
    value = losses.soft_avuc(logits, labels, **options)
    np.testing.assert_allclose(value, losses.soft_avuc(logits, labels, where=np.ones(37, bool), **options), rtol=1e-6)
    np.testing.assert_allclose(value, losses.soft_avuc(logits.tolist(), labels, **options), rtol=1e-6)
  assert catalogue._compiled._cache_size() - compiled == 2
  with pytest.raises(ValueError, match="labels must be in"):
    losses.soft_avuc(logits, labels - 1)
  with pytest.raises(ValueError, match="threshold must be in"):
    losses.soft_avuc(logits, labels, threshold=1.5)
  assert losses.focal(logits, labels, gamma=1).shape == (37,)
  with pytest.raises(TypeError, match="gamma must be a number: got True"):  # It equals 1, of which there is a program.
    losses.focal(logits, labels, gamma=True)
  with pytest.raises(ValueError, match="masked class"):
    losses.square(np.where(np.arange(5) == 0, -np.inf, logits), np.ones(37, int))
  for threshold in np.linspace(0.1, 0.9, 2 * catalogue.MOST):
    losses.soft_avuc(logits, labels, threshold=float(threshold))
  assert catalogue._compiled._cache_size() - compiled <= catalogue.MOST + 2  # Two of them are calls of focal.
