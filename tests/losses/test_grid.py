"""Losses that loop over classes, or whose formula has K, against float64 references for 2 and 1000 (elsewhere: 3)."""

import pytest

from tests.losses import cases

# Others read the label's or the top class's log-odds of the same functions.
NAMES = ("dual_focal", "properized_focal", "class_adaptive_label_smoothing", "adaptive_conditional_label_smoothing",
         "pairwise_constraints", "soft_avuc", "soft_binned_marginal_ece", "mdca", "generative_cross_entropy")


def _grid(table):
  # The last options: those of the margins are small enough for penalties.
  return [pytest.param(*p.values, k, id=f"{p.id}-{k}", marks=[*p.marks, *[pytest.mark.slow] * (k > 2)])
          for p in cases.cases({name: table[name][-1:] for name in NAMES if name in table}) for k in (2, 1000)]


@pytest.mark.parametrize(("name", "options", "k"), _grid(cases.PER_EXAMPLE))
def test_per_example_losses_equal_the_reference(name, options, k):
  cases.check_examples(name, options, cases.step(name, options, 5), *cases.data(5, k, seed=3))


@pytest.mark.parametrize(("name", "options", "k"), _grid(cases.PER_BATCH))
def test_per_batch_losses_equal_the_reference(name, options, k):
  for n in (2, 64):
    cases.check_batch(name, options, cases.step(name, options, 64), *cases.data(n, k, seed=n))
