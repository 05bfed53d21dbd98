"""The tables of the papers at paper scale: every cell is a config, and every network fits its data."""

import json

import jax
import jax.numpy as jnp
import pandas as pd
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import models
from configs import mac_cal
from experiments.common import report, rows, scores, sweep, tuning
from experiments.common.commands import RESULTS
from experiments.leaderboard import experiment as leaderboard_experiment
from experiments.leaderboard import methods as training_methods
from experiments.leaderboard.claims import CLAIMS as leaderboard_claims
from experiments.papers.focal_temperature import table as focal_temperature_table
from experiments.papers.mac_cal import tables as mac_cal_tables
from experiments.papers.reweighted_risk import tables as reweighted_risk_tables
from experiments.papers.soft_calibration import tables as soft_calibration_tables
from tests.training.config.data import SHAPES

MODULES = (focal_temperature_table, mac_cal_tables, reweighted_risk_tables, soft_calibration_tables)
TABLES = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}


def _methods(name, *arguments):
  experiment = (TABLES | {"leaderboard": leaderboard_experiment.EXPERIMENT})[name]
  return experiment.methods(sweep.parse(experiment, ["--scale=paper", *arguments]))


def test_the_tables_have_the_rows_and_the_columns_of_the_papers():
  cells = {name: [(method.task, method.name) for method in _methods(name)] for name in TABLES}
  # Karandikar et al.: 18 configurations for each CIFAR, and 6 for ImageNet.
  assert len(cells["papers.soft_calibration.tables"]) == 42
  assert len(cells["papers.reweighted_risk.tables"]) == 10 * 9  # Zhou et al.: XE, six other losses, and ours.
  assert len(cells["papers.focal_temperature.table"]) == 3 * 6  # Komisarenko & Kull: three data sets.
  assert len(cells["papers.mac_cal.tables"]) == 9 * (len(mac_cal.losses("cifar10", "resnet50")) + len(
    mac_cal_tables.PARTS))
  for names in cells.values():
    assert len(set(names)) == len(names)


def test_the_page_of_experiments_names_their_commands_and_how_many_cells_they_have():
  page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
  assert all(f"`python -m experiments.{name} --scale=paper --out=DIR`" in page for name in (*TABLES, "leaderboard"))
  assert "| 6 losses, three data sets, five seeds |" in page
  assert "| 42 configurations, ten seeds |" in page and "| 9 losses, ten networks, three seeds |" in page
  methods = {method.name for method in _methods("papers.mac_cal.tables")} - set(mac_cal_tables.PARTS)
  assert len(methods) == 30 and "| 30 methods and four parts of MaC-Cal, nine networks, one seed |" in page
  number = len(training_methods.METHODS) + len(training_methods.COMBINED)
  assert f"| {number} methods, five seeds |" in page


@pytest.mark.parametrize(("experiment", "claims"), [
  *((module.EXPERIMENT, module.CLAIMS) for module in MODULES), (leaderboard_experiment.EXPERIMENT, leaderboard_claims)])
def test_every_claim_is_about_rows_and_columns_that_the_table_has(experiment, claims):
  names = {method.name for method in experiment.methods(sweep.parse(experiment, ["--scale=tiny"]))}
  for claim in claims:
    for method, calibrator in (claim.row, claim.other):
      assert method in ("", *names) and calibrator in ("none", *experiment.calibrators)
    assert claim.column in (*experiment.columns, *scores.SHIFTED)


def test_a_page_has_the_detection_of_other_images_where_rows_have_it():
  table = rows.texts(RESULTS / "mac_cal_tables_fashion_mnist_mlp.csv")
  half = table.assign(**dict.fromkeys(scores.DETECTION, table["method"].map({"masked": "0.5"}).fillna("")))
  text = report.page(TABLES["papers.mac_cal.tables"], half, "mac_cal_tables_paper")
  assert "| trained with | calibrated by | AUROC %° | FPR95 %° |" in text
  assert "| masked | none | 50.00 ± 0.00 | 50.00 ± 0.00 |" in text and "| cross_entropy | none | 50" not in text


def test_effect_sizes_are_those_of_pooled_deviations():
  def made(method, calibrator, values):
    return [{"task": "t", "method": method, "calibrator": calibrator, "seed": str(i), "ece_equal_mass_l2": str(x)}
            for i, x in enumerate(values)]

  effects = soft_calibration_tables.effects(pd.DataFrame([
    *made("focal", "none", (0.05, 0.06, 0.07)), *made("focal+mmce", "none", (0.02, 0.04)),
    *made("focal", "TS", (0.01,)), *made("focal+mmce", "TS", (0.02, 0.03))]))
  # Means 0.06 and 0.03, sums of squares 0.0002 and 0.0002 with 3 degrees of freedom; one seed after TS is too few.
  assert effects == {("t", "focal"): {"mmce": {"none": pytest.approx(0.03 / (0.0004 / 3)**0.5, rel=1e-5)}}}


@pytest.mark.parametrize(("name", "task", "method", "expected"), [
  ("papers.focal_temperature.table", "cifar10, resnet50", "focal_7",
   {"num_seeds": 5, "loss.primary.gamma": 7.0, "loss.reduction": "sum"}),
  ("papers.mac_cal.tables", "tiny_imagenet, resnet50", "cross_entropy", {"evaluation.ood": ()}),
  ("papers.mac_cal.tables", "cifar100, resnet50", "simplex_etf_released",
   {"head.name": "simplex_etf", "optimizer.name": "adamw", "optimizer.learning_rate": 1e-4, "training.select": "best",
    "evaluation.ood": ("cifar10", "svhn_cropped"), "training.evaluate_every_epochs": 1}),
  ("papers.mac_cal.tables", "cifar10, resnet50", "part: gradient restriction",
   {"seed": 1, "head.bottleneck": False, "head.updates": "used", "evaluation.ood": ("cifar100", "svhn_cropped")}),
  ("papers.mac_cal.tables", "cifar10, resnet50", "mmce_masked",
   {"head.name": "masked", "loss.secondary.name": "mmce", "stage2.loss.name": "cross_entropy"}),
  # As Jordahn & Olmos 2024: every epoch of both stages counts.
  *(("leaderboard", "", name, {
    "augmentation.name": "crop_flip", "augmentation.padding": 4, "schedule.augment": True, "training.batch_size": 128,
    "schedule.stage2_batch_size": 256, "schedule.stage2_epochs": 40, "training.select": "best",
    "training.select_after_epochs": 0, "training.evaluate_every_epochs": 1}) for name in ("TST", "V-TST")),
  *(("leaderboard", "", name, {"schedule.stage2_epochs": number, "training.select": "last",
                               "schedule.stage2_batch_size": 0}) for name, number in (
    ("MaC-Cal", 100), ("MaC-Cal, printed", 40), ("TST, as Ni et al.", 40), ("V-TST, as Ni et al.", 40))),
])
@pytest.mark.usefixtures("unchecked")
def test_a_cell_is_the_config_of_its_paper(name, task, method, expected):
  config, = (m.config() for m in _methods(name) if (m.task, m.name) == (task, method))
  assert {field: run_config.get(config, field) for field in expected} == expected


@pytest.mark.usefixtures("unchecked")
def test_weights_beside_a_summed_loss_become_those_beside_its_mean():
  experiment, losses = TABLES["papers.mac_cal.tables"], {}
  for scale in ("paper", "tiny"):
    methods = experiment.methods(sweep.parse(experiment, [f"--scale={scale}"]))
    losses[scale] = next(method.config() for method in methods if method.name == "mmce").loss
  assert (losses["paper"].reduction, losses["paper"].weight) == ("sum", 256.0)
  assert (losses["tiny"].reduction, losses["tiny"].weight) == ("mean", 2.0)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_every_config_is_complete_and_every_network_fits_its_data():
  networks = {}  # Those of 283 configs are built once for each shape of images.
  for name in TABLES:
    for job in sweep.jobs(_methods(name), num_seeds=1):
      shape, num_classes = SHAPES[job.config.data.name]
      networks[shape, str(job.config.model.to_dict())] = num_classes, job.config.model
  assert len(networks) >= 10
  for (shape, _), (num_classes, section) in networks.items():
    model = models.get(num_classes=num_classes, **section)
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
    assert logits.shape == (2, num_classes)


@pytest.mark.parametrize("at_the_edge", [True, False])
def test_a_tuned_row_at_the_edge_of_its_grid_is_not_judged(at_the_edge):
  name, key, changed = "brier+soft_avuc", "loss.weight", []
  for row in rows.read(RESULTS / "soft_calibration_tables_fashion_mnist_mlp.csv"):
    if row["method"] in (name, "brier"):
      chosen = json.loads(row["chosen"])
      tried = {field: [value - 1, value, value + 1] for field, value in chosen.items()}
      if at_the_edge and row["method"] == name:
        tried[key].pop()
      row |= {"tried": json.dumps(tried)}
    changed.append(row)
  text = report.page(TABLES["papers.soft_calibration.tables"], pd.DataFrame(changed), "soft_calibration_tables_tiny")
  line, = (line for line in text.splitlines() if line.startswith("| S-AvUC lowers the ECE of brier | "))
  assert line.endswith("| cannot tell | brier+soft_avuc at the edge of the grid |") == at_the_edge
  assert "setting is the first or the last that was tried, but for 0, is not judged" in text


def test_searches_of_the_committed_rows_end_inside_or_where_their_ladder_ends():
  for row in rows.read(RESULTS / "soft_calibration_tables_fashion_mnist_mlp.csv"):
    chosen, tried = json.loads(row["chosen"]), json.loads(row["tried"] or "{}")
    for key, values in tried.items():
      assert values[0] < chosen[key] < values[-1] or chosen[key] in (tuning.LADDERS[key][0], tuning.LADDERS[key][-1])


@pytest.mark.parametrize("experiment", [MODULES[0].EXPERIMENT, leaderboard_experiment.EXPERIMENT])
@pytest.mark.usefixtures("unchecked")
def test_at_paper_scale_data_names_the_directory_of_the_data_sets(experiment, tmp_path):
  def first(data):
    return experiment.methods(sweep.parse(experiment, ["--scale=paper", f"--data={data}"]))[0].config()

  assert first(tmp_path).data.dir == str(tmp_path)
  assert sweep.parse(experiment, ["--scale=paper"]).data == "" and first("").data.dir == "~/tensorflow_datasets"
  with pytest.raises(UserError, match=r"--data must name a directory .*prepare.*: got .*absent\.npz"):
    first(tmp_path / "absent.npz")
