"""The leaderboard: its grid at a tiny scale, its ranks by hand, and the page made from the committed rows."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from calib_jax import losses
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data
from experiments.common import claims, comparison, images, ranking, rows, sweep
from experiments.common.commands import RESULTS
from experiments.leaderboard import experiment as leaderboard
from experiments.leaderboard import methods as training_methods
from experiments.leaderboard import page as leaderboard_page
from experiments.leaderboard.claims import CLAIMS


def test_every_loss_that_needs_no_other_name_is_a_method():
  named = {recipe.fields.get(f"loss.{part}", {}).get("name") for recipe in training_methods.METHODS.values()
           for part in ("primary", "secondary")}
  assert {*losses.PER_EXAMPLE, *losses.PER_BATCH} - named <= {"square", "soft_binned_marginal_ece"}
  assert {len(values) for recipe in training_methods.METHODS.values() for values in recipe.search.values()} == {3}


@pytest.mark.parametrize("scale", ["tiny", pytest.param("paper", marks=pytest.mark.slow)])
def test_every_method_is_a_config_of_its_own(scale):
  options = sweep.parse(leaderboard.EXPERIMENT, [f"--scale={scale}"])
  methods = leaderboard.methods(options)
  assert len(methods) == len(training_methods.METHODS) + len(training_methods.COMBINED)
  jobs = sweep.jobs(methods)  # Makes and checks the configs.
  assert len({job.declared for job in jobs}) == len(methods)
  for job in jobs:  # The values that are tried are values of fields that the config has.
    for field, values in job.method.search.items():
      assert type(run_config.get(job.config, field)) in (type(values[0]), type(None))


def test_ranks_and_wins_are_those_worked_out_by_hand():
  values = np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [2.0, 2.0, 3.0]])
  np.testing.assert_allclose(ranking.mean_ranks(values), [(1 + 1 + 1.5) / 3, (2 + 3 + 1.5) / 3, (3 + 2 + 3) / 3])
  np.testing.assert_allclose(ranking.wins(values), [(1 + 1 + 0.75) / 3, (0.5 + 0 + 0.75) / 3, (0 + 0.5 + 0) / 3])


def test_a_method_that_diverged_is_not_ranked():
  names, values = ranking.table({"a": {"0": 1.0, "1": 2.0}, "b": {"0": float("nan"), "1": 1.0}, "c": {"1": 3.0}})
  assert names == ("a", "b", "c") and values.tolist() == [[2.0, 1.0, 3.0]]
  assert ranking.table({"a": {"0": 1.0}, "b": {"0": float("nan")}})[0] == ("a",)


def _rows(**values):
  """Rows of some seeds: ``method__calibrator`` to the values of a column by its name."""
  return pd.DataFrame([{
    "task": "", "method": name.partition("__")[0], "calibrator": name.partition("__")[2], "seed": str(i),
    **dict(zip(columns, map(str, of_seed), strict=True))}
    for name, columns in values.items() for i, of_seed in enumerate(zip(*columns.values(), strict=True))])


def test_claims_are_judged_by_paired_intervals():
  table = _rows(a__none={"ece": (0.1, 0.2, 0.3)}, b__none={"ece": (0.09, 0.19, 0.288)},
                c__none={"ece": (0.0, 0.3, 0.3)})

  def judged(row, other, lower=True):
    claim = claims.Claim("", "", (row, "none"), (other, "none"), "ece", lower)
    change = comparison.paired(*claims.sides(table, claim))
    return claims.judged(change, change.p_value, claim, 3)[0]

  assert (judged("b", "a"), judged("a", "b"), judged("c", "a"), judged("a", "b", lower=False)) == (
    "seen here", "not seen here", "cannot tell", "seen here")
  # Over all methods: the mean of each seed.
  every = comparison.paired(*claims.sides(
    pd.concat([table, _rows(a__TS={"ece": (0.0, 0.1, 0.2)}, b__TS={"ece": (0.0, 0.1, 0.2)})]),
    claims.Claim("", "", ("", "TS"), ("", "none"), "ece")))
  assert every.mean == pytest.approx(np.mean([0.0, 0.1, 0.2]) - np.mean([0.19 / 3, 0.69 / 3, 0.888 / 3]))


def test_claims_of_a_page_compare_like_with_like_and_are_corrected_for_their_number():
  settings = {name: leaderboard_page._fields(recipe) for name, recipe in training_methods.METHODS.items()}
  for claim in CLAIMS:
    gammas = [settings.get(method, {}).get("loss.primary.gamma") for method, _ in (claim.row, claim.other)]
    if None not in gammas and claim.about is not None:
      assert gammas[0] == gammas[1] and not claims.unlike(claim, settings), claim
    if claim.about is not None:  # With another gamma the two are not comparable.
      tuned = settings | {claim.other[0]: settings[claim.other[0]] | {"loss.primary.gamma": 7.0}}
      assert "gamma" in claims.unlike(claim, tuned), claim
  # One claim is decided alone (p = 0.03), and not beside another one.
  table = _rows(a__none={"ece": (0, 0, 0)}, b__none={"ece": (0.8, 1, 1.6)}, c__none={"ece": (-1, 1, 0.5)})
  both = [claims.Claim("", "", ("a", "none"), (other, "none"), "ece") for other in ("b", "c")]
  of_others = [*both[:1], both[0]._replace(other=("d", "none"))]
  assert [cells[-2:] for cells in claims.table(table, of_others)] == [
    ["seen here", "lower by 113.33 points [9.91, 216.76] in 3 seeds"], ["not run yet", "no rows of d"]]
  assert claims.table(table, of_others[:1], published=True)[0][-2] == "agrees"  # On the paper's data and network alone.
  assert [cells[-2:] for cells in claims.table(table, both)] == [
    ["cannot tell", "lower before Holm's correction, not after it"], ["cannot tell", "the interval holds 0"]]
  assert claims.table(table, [both[0]._replace(about=())], {"a": {"gamma": 1.0}, "b": {"gamma": 2.0}})[0][-2:] == [
    "not comparable", "gamma 1.0 against 2.0"]
  added = both[0]._replace(lower=False, about=("loss.secondary", "loss.weight"))  # Worse than without the loss.
  verdict, reason = claims.table(table, [added])[0][-2:]
  assert verdict == "cannot tell" and "a weight near 0" in reason
  assert claims.table(table[::3], both[:1])[0][-2:] == ["cannot tell", "one seed has no interval"]


def test_means_over_all_methods_leave_out_those_of_which_a_seed_has_collapsed():
  table = _rows(**{"cross entropy__none": {"accuracy": (0.8, 0.84), "ece": (0.1, 0.1)},
                   "cross entropy__TS": {"accuracy": (0.8, 0.84), "ece": (0.0, 0.0)},
                   "a__none": {"accuracy": (0.73, 0.9), "ece": (0.2, 0.2)},
                   "a__TS": {"accuracy": (0.73, 0.9), "ece": (0.1, 0.1)},
                   "b__none": {"accuracy": (0.85, 0.71), "ece": (0.1, 0.1)},
                   "b__TS": {"accuracy": (0.85, 0.71), "ece": (0.9, 0.9)},
                   "c__none": {"accuracy": (0.85, np.nan), "ece": (0.1, np.nan)}})
  assert ranking.collapsed(table) == {("", "b"), ("", "c")}
  change = comparison.paired(*claims.sides(table, claims.Claim("", "", ("", "TS"), ("", "none"), "ece")))
  assert change.mean == pytest.approx(-0.1)
  judged = [claims.Claim("", "", (name, "none"), ("cross entropy", "none"), "ece") for name in "ab"]
  (*_, of_a), (*_, verdict, of_b) = claims.table(table, judged)
  assert "collapsed" not in of_a and (verdict, of_b) == ("cannot tell", "b collapsed")


def test_few_images_are_drawn_by_the_seed_and_tested_on_the_same(tmp_path):
  rng, labels = np.random.default_rng(0), np.arange(60) % 3
  pixels = rng.integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
  path = str(tmp_path / "images.npz")
  np.savez(path, train_images=pixels, train_labels=labels, test_images=pixels[:30], test_labels=labels[:30])
  first, second = (images.few(path, seed, num_examples=30, num_test=12, shrink=2) for seed in (0, 1))
  assert isinstance(first, data.Pool) and first.train.images.shape == (30, 2, 2, 1) and first.num_classes == 3
  assert np.bincount(first.train.labels).tolist() == [10, 10, 10]
  assert not np.array_equal(first.train.images, second.train.images)
  np.testing.assert_array_equal(first.test.images, second.test.images)
  whole = images.few(path, 0, num_examples=60, num_test=30)
  np.testing.assert_array_equal(whole.train.images, pixels)
  half = images.few(path, 0, num_examples=60, num_test=30, shrink=2).test.images
  expected = pixels[:30].reshape(30, 2, 2, 2, 2, 1).astype(float).mean((2, 4))
  assert np.abs(half - expected).max() <= 0.5
  with pytest.raises(UserError, match="has 60 images to train and 30 to test on"):
    images.few(path, 0, num_examples=61, num_test=30)
  with pytest.raises(UserError, match="shrink must divide 4 and 4: got 3"):
    images.few(path, 0, num_examples=60, num_test=30, shrink=3)


def test_the_top_is_that_of_the_lowest_nll_with_intervals_over_seeds_and_images():
  board = rows.texts(leaderboard_page.ROWS)
  table = [[cell.strip() for cell in line.strip("|").split("|")]
           for line in leaderboard_page.top(board, most=3).splitlines() if line.startswith("|")]

  def part(method, calibrator):
    return board[(board["method"] == method) & (board["calibrator"] == calibrator)]

  def values(method, calibrator, column):
    return part(method, calibrator)[column].to_numpy(float)

  assert table[0][1:3] == ["times to train", "to predict"]
  alone = {name for name in board["method"] if leaderboard_page.RECIPES[name].members == 1}
  lowest = sorted(alone, key=lambda name: values(name, "none", "nll").mean())[:2]
  assert [row[0] for row in table[2:]] == [*lowest, "cross entropy"]
  chosen = comparison.chosen(board)
  for name, train, predict, accuracy, nll, ece, nll_after, ece_after in table[2:]:
    assert (train, predict) == leaderboard_page.cost(name, chosen[name])
    for text, calibrator in ((ece, "none"), (ece_after, "TS")):
      x = 100 * values(name, calibrator, "ece")
      left_out = sum(np.array(blocks.split(), float) for blocks in part(name, calibrator)["images_ece"] if blocks)
      of_seeds = stats.sem(x) ** 2  # The jackknife is of the mean of ten seeds, in percent and units of 1e-5.
      of_images = 19 / 20 * np.sum((left_out - left_out.mean()) ** 2) * (100 * 1e-5 / len(x)) ** 2
      half = np.sqrt(stats.t.isf(0.025, len(x) - 1) ** 2 * of_seeds + stats.t.isf(0.025, 19) ** 2 * of_images)
      assert text == f"{x.mean():.2f} [{x.mean() - half:.2f}, {x.mean() + half:.2f}]"
    assert (nll, nll_after) == tuple(f"{values(name, c, 'nll').mean():.4f}" for c in ("none", "TS"))
    assert accuracy == f"{100 * values(name, 'none', 'accuracy').mean():.2f}"


def test_a_claim_has_one_verdict_for_a_data_set_and_a_network():
  verdicts = {}
  for page in sorted(RESULTS.glob("*_fashion_mnist_mlp.md")):
    for line in page.read_text(encoding="utf-8").splitlines():
      cells = [cell.strip() for cell in line[1:-1].split("|")]
      if len(cells) == 8 and cells[6] in ("seen here", "not seen here", "cannot tell"):
        assert verdicts.setdefault((cells[0], cells[1]), page) == page, cells[0]
  assert len(verdicts) > 50
