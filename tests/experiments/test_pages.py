"""Every committed page is made from the committed rows."""

import functools
import re

import numpy as np
import pandas as pd
import pytest

from experiments import covariate_shift, coverage, effects, equal_search, full_size, recommendations
from experiments.calarena import page as calarena_page
from experiments.calibrators import scikit_learn, set_size
from experiments.common import comparison, report, rows, scales, sweep
from experiments.common.commands import RESULTS, ROOT
from experiments.estimators import decomposition, dependence, differences, seeds_and_images, verdicts
from experiments.leaderboard import experiment as leaderboard
from experiments.leaderboard import more_data
from experiments.leaderboard import page as leaderboard_page
from experiments.papers.classwise_loss_scaling import class_losses, correlation, table2, tables_1_and_3
from experiments.papers.focal_temperature import table as focal_temperature_table
from experiments.papers.focal_temperature import temperatures, theory
from experiments.papers.mac_cal import classifier_level_table, masks
from experiments.papers.mac_cal import tables as mac_cal_tables
from experiments.papers.reweighted_risk import readings
from experiments.papers.reweighted_risk import tables as reweighted_risk_tables
from experiments.papers.soft_calibration import figures as soft_calibration_figures
from experiments.papers.soft_calibration import memorisation
from experiments.papers.soft_calibration import tables as soft_calibration_tables

EXPERIMENTS = [module.EXPERIMENT for module in (
  more_data, leaderboard, equal_search, full_size, focal_temperature_table, mac_cal_tables, readings,
  reweighted_risk_tables, memorisation, soft_calibration_tables)]
MADE_BY = {  # Of pages that no declaration of an experiment makes.
  **{module.NAME: module.page for module in (tables_1_and_3, class_losses, correlation, temperatures)},
  "calarena_local": calarena_page.page,
  **{f"covariate_shift_{data}_{network}": functools.partial(covariate_shift.page, f"{data}.npz", network)
     for data, network in (("cifar10_jpeg", "resnet8"), ("fashion_mnist", "mlp"))},
  "calibration_set_size": set_size.page, "scikit_learn": scikit_learn.page,
  "classwise_loss_scaling_table2": table2.page,
  "soft_calibration_severities_fashion_mnist_mlp": lambda table: soft_calibration_figures.page(
    table, "soft_calibration_severities_fashion_mnist_mlp"),
  "focal_temperature_theory": lambda table: theory.page(
    table, *(rows.texts(RESULTS / f"focal_temperature_theory_{part}.csv") for part in ("points", "lines")))}
# The options of the commands whose rows are committed.
COMMANDS = {
  **{f"{table}_fashion_mnist_mlp": "--data=fashion_mnist.npz" for table in (
    "focal_temperature_table", "mac_cal_tables", "reweighted_risk_tables", "soft_calibration_tables")},
  **{f"leaderboard_more_data_{data}_resnet8": f"--data={data}.npz" for data in ("cifar10_jpeg", "tiny_imagenet")},
  "full_size_cifar10_jpeg_preresnet20": "--data=cifar10_jpeg.npz",
  "reweighted_risk_readings_laptop": "--images=cifar10_jpeg.npz",
  "soft_calibration_memorisation_fashion_mnist": "--images=fashion_mnist.npz --num_examples=2000"}
README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")


def _experiment(stem):
  return next(x for x in EXPERIMENTS if stem.startswith(f"{x.files()}_"))


def _committed(stem, suffix=".md"):
  return (RESULTS / f"{stem}{suffix}").read_text(encoding="utf-8")


# Of the three leaderboards, which take longest, the fast tests make one.
LATER = ("leaderboard_fashion_mnist_mlp", "leaderboard_cifar10_jpeg_resnet8")


@pytest.mark.parametrize("stem", [
  pytest.param(stem, marks=[pytest.mark.slow] * (stem in LATER))
  for stem in sorted(path.stem for path in RESULTS.glob("*.tex"))])
def test_a_page_and_its_latex_are_made_from_the_rows(stem):
  experiment = _experiment(stem)
  table = rows.texts(RESULTS / f"{stem}.csv")
  assert report.page(experiment, table, stem) == _committed(stem)
  shown = table[table["calibrator"].isin(experiment.shown or table["calibrator"])]
  assert comparison.latex(shown, experiment.columns, experiment.cost) == _committed(stem, ".tex")
  size = f"{table['method'].nunique()} of {len(leaderboard_page.RECIPES)} methods, {table['seed'].nunique()} seeds"
  assert f"{f'[{size}]' if experiment is leaderboard.EXPERIMENT else ''}(results/{stem}.md)" in README


@pytest.mark.parametrize(("stem", "option"), [
  *COMMANDS.items(), pytest.param("leaderboard_fashion_mnist_mlp", "--data=fashion_mnist.npz", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("unchecked")
def test_the_committed_rows_are_still_those_of_their_configs(stem, option):
  """Otherwise the command of the page would train them again."""
  experiment, table = _experiment(stem), rows.texts(RESULTS / f"{stem}.csv")
  declared = {(row.task, row.method): row.declared for row in table.itertuples()}
  methods = experiment.methods(sweep.parse(experiment, option.split()))
  jobs = sweep.jobs([method for method in methods if (method.task, method.name) in declared])
  assert {(job.method.task, job.method.name): job.declared for job in jobs} == declared


@pytest.mark.parametrize("stem", MADE_BY)
def test_a_page_without_a_declaration_is_made_from_its_rows(stem):
  table = rows.frame(RESULTS / f"{stem}.csv")
  assert MADE_BY[stem](table) == _committed(stem)


def test_published_numbers_stand_beside_ours_in_the_page_of_experiments():
  table = rows.frame(RESULTS / "classwise_loss_scaling_table2.csv").query("fit == 'optimum'")
  means = table.groupby(["calibrator", "objective"])[["published_ece", "ece"]].mean()
  numbers = ["TS {:.2f}, TS + CLS {:.2f}, CTS + CLS {:.2f}".format(*means[column][[
    ("TS", "base"), ("TS", "CLS"), ("CTS", "CLS")]]) for column in means]
  assert f"{' | '.join(numbers)}; [all cells](results/classwise_loss_scaling_table2.md)" in README
  table = rows.frame(RESULTS / "focal_temperature_theory.csv")
  published, ours = (", ".join("{} gamma + {}".format(*x) for x in lines) for lines in (
    theory.PUBLISHED.values(), [[f"{x:.2f}" for x in theory.line(table, k, 7)] for k in theory.PUBLISHED]))
  assert f"| {published} | {ours}; [bounds, errors, figures](results/focal_temperature_theory.md)" in README


@pytest.mark.parametrize("path", [
  pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * ("fashion" in path.stem))
  for path in sorted(RESULTS.glob("classifier_level_*.md"))])
def test_a_page_of_new_heads_is_made_from_its_rows(path):
  command = re.search(r"Made by `(.*)`\.", _committed(path.stem))[1]
  network = scales.described(path.stem.removeprefix("classifier_level_"))
  table = classifier_level_table.read(path.with_suffix(".csv"))
  assert classifier_level_table.page(table, network, command) == _committed(path.stem)


def test_the_page_of_masks_is_made_from_its_rows():
  stem = "mac_cal_masks_fashion_mnist_mlp"
  command = re.search(r"Made by `(.*?)`", _committed(stem))[1]
  assert masks.page(rows.frame(RESULTS / f"{stem}.csv"), command, stem) == _committed(stem)


DESCRIBED = ("focal_temperature_table", "focal_temperature_temperatures", "focal_temperature_theory", "mac_cal_tables",
             "reweighted_risk", "soft_calibration_tables", "calibration_set_size", "scikit_learn", "covariate_shift",
             "full_size", "classwise_loss_scaling_correlation")  # Sentences say what was done; verdicts are cells.


def _shuffled(table):
  """The rows with the fractions of each column in another order."""
  rng, changed = np.random.default_rng(0), table.copy()
  for name in table.columns:
    values = pd.to_numeric(table[name], errors="coerce")
    if values.notna().mean() > 0.5 and (values % 1 != 0).any() and not name.startswith(("images_", "seconds", "gamma")):
      values = rng.permutation(values.to_numpy())
      is_text = table[name].map(type).eq(str).all()
      changed[name] = [f"{x:.6f}" if np.isfinite(x) else "" for x in values] if is_text else values
  return changed


# One page of each experiment.
@pytest.mark.parametrize("stem", [*{_experiment(path.stem).name: path.stem for path in RESULTS.glob("*.tex")}.values(),
                                  *MADE_BY])
def test_sentences_of_a_page_follow_from_its_rows(stem):
  experiment = next((x for x in EXPERIMENTS if stem.startswith(f"{x.files()}_")), None)
  table = rows.frame(RESULTS / f"{stem}.csv") if stem in MADE_BY else rows.texts(RESULTS / f"{stem}.csv")
  page = MADE_BY[stem](_shuffled(table)) if stem in MADE_BY else report.page(experiment, _shuffled(table), stem)
  lines, changed = ([line for line in text.splitlines() if line and not line.startswith("#")]
                    for text in (_committed(stem), page))
  assert lines != changed
  if not stem.startswith(DESCRIBED):
    assert [line for line in lines if not line.startswith("|")] != [x for x in changed if not x.startswith("|")]


def test_the_tables_of_the_guides_are_those_of_the_rows(tmp_path):
  guide = recommendations.PAGE.read_text(encoding="utf-8")
  assert recommendations.table() in guide and recommendations.calibrators() in guide
  found = effects.every()
  for name, of_page in effects.pages().items():
    assert effects.table(found, of_page) in (ROOT / "docs" / name).read_text(encoding="utf-8")
  assert classifier_level_table.readings() in classifier_level_table.PAGE.read_text(encoding="utf-8")
  text, table = leaderboard_page.PAGE.read_text(encoding="utf-8"), rows.texts(leaderboard_page.ROWS)
  stale = tmp_path / "results.md"
  stale.write_text(text.replace(leaderboard_page.top(table), "| an older table |\n"), encoding="utf-8")
  assert stale.read_text(encoding="utf-8") != text
  leaderboard_page.write_top(table, leaderboard_page.ROWS.with_suffix(""), stale)
  assert stale.read_text(encoding="utf-8") == text


def test_the_tables_of_simulations_are_those_of_the_rows():
  page, verdict_page = (_committed(name) for name in ("coverage", "verdicts"))
  tables = [module.STUDY.page() for module in (coverage, differences, dependence, decomposition)]
  tables += [study.page() for study in seeds_and_images.STUDIES]
  assert all(table in page for table in tables) and verdicts.STUDY.page() in verdict_page


def test_the_table_of_calibrators_by_method_is_made_from_its_rows():
  table = set_size.by_method(rows.frame(RESULTS / "calibrators_by_method.csv"))
  assert table in _committed("calibrators_by_method")


def test_every_page_has_a_test_here_or_of_its_own():
  elsewhere = {"calarena_published", "calibrators_by_method", "estimators", "judged", "pod", "recommendations",
               "records", "second_stage_cost_resnet8", "selective_risk", "thresholds", "timings",
               "tune_fashion_mnist_small_savuc"}
  here = {*(path.stem for path in RESULTS.glob("*.tex")), *MADE_BY, "coverage", "verdicts", "new_heads",
          "mac_cal_masks_fashion_mnist_mlp", *(path.stem for path in RESULTS.glob("classifier_level_*.md"))}
  assert {path.stem for path in RESULTS.glob("*.md")} == here | elsewhere
