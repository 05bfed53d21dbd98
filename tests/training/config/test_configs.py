"""Every config builds its model on its data's shapes, and every cell of a paper is a config that can be trained."""

import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data, models
from configs import (
  classwise_loss_scaling,
  common,
  focal_temperature,
  mac_cal,
  reweighted_risk,
  soft_calibration,
)
from tests.training.config.data import SHAPES

PAPERS = {"SC": soft_calibration, "RR": reweighted_risk, "FT": focal_temperature, "CL": classwise_loss_scaling,
          "MC": mac_cal}  # By their names in docs/recipes.md.
FILES = {paper: paper.__name__.replace(".", "/") + ".py" for paper in PAPERS.values()}
NETWORKS = [f"{FILES[paper]}:{data}.{model}" for paper in PAPERS.values() for data in paper.NETWORKS
            for model in paper.NETWORKS[data]]
CONFIGS = ["configs/digits_savuc.py", "configs/fashion_mnist_small_savuc.py", "configs/cifar100_savuc.py",
           *NETWORKS]  # test_imports has configs/npz.py.

# Of every family; tests/experiments/papers/test_tables.py builds all others.
BUILT = ("digits_savuc.py", "cifar100_savuc.py", "cifar10_lt.densenet40", "tiny_imagenet.vit_small")


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.endswith(BUILT)])
def test_the_config_is_sound_and_its_model_fits_its_data(path):
  config = run_config.load(path, [])
  run_config.check(config, num_devices=1)
  run_config.check(config, num_devices=8)
  shape, num_classes = SHAPES[config.data.name.removesuffix("_lt")]
  model = models.get(num_classes=num_classes, **config.model)
  logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.zeros((2, *shape)))
  assert logits.shape == (2, num_classes) and logits.dtype == jnp.float32


@pytest.mark.parametrize("file", sorted({path.partition(":")[0] for path in CONFIGS}))
def test_cells_are_named_by_their_data_and_network_and_the_commands_of_a_file_are_its_own(file):
  for path in CONFIGS:
    if path.startswith(f"{file}:"):
      config = run_config.load(path, [])
      assert config.data.name in data.SOURCES
      assert path == f"{file}:{config.data.name}.{config.model.name.removesuffix('_bottleneck')}"
  commands = re.findall(r"--config=([\w/.:+]*\w)", pathlib.Path(file).read_text(encoding="utf-8"))
  assert commands and all(command.partition(":")[0] == file and run_config.load(command, []) for command in commands)


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_cells_train_the_losses_that_they_name_and_differ_in_the_fields_of_these_alone(paper):
  for data_name, models_of_data in paper.NETWORKS.items():
    for model in models_of_data:
      cell = f"{FILES[paper]}:{data_name}.{model}"
      cross_entropy = run_config.load(cell, []).unlock()
      assert cross_entropy.data.name == data_name
      for loss, fields in paper.losses(data_name, model).items():
        config = run_config.load(f"{cell}.{loss}", []).unlock()
        names = {config.loss.primary.name, config.loss.secondary.name, config.augmentation.name,
                 config.head.name, config.schedule.name, re.sub(r"^avuc$", "avuc_gs", config.loss.secondary.name),
                 "label_smoothing" if config.loss.primary.get("label_smoothing") else ""}
        for part in loss.split("+"):
          assert re.sub(r"_(\d+|clamped|masked|no_gradient|printed|released)$", "", part) in names, (cell, loss)
        assert (config == cross_entropy) == (loss == "cross_entropy")
        for field in fields:
          field = "schedule" if field.startswith("schedule.") else field  # Another schedule has other options.
          section, _, last = field.rpartition(".")
          (run_config.get(config, section) if section else config)[last] = run_config.get(cross_entropy, field)
        assert config == cross_entropy


@pytest.mark.parametrize("cell", [
  "reweighted_risk.py:cifar10.preresnet56.selective_risk", "reweighted_risk.py:cifar10.preresnet56.kde_ece",
  "mac_cal.py:cifar10.resnet50.mmce", "focal_temperature.py:cifar10.resnet50.adaptive_focal",
  "mac_cal.py:cifar10.resnet50.mixup", "mac_cal.py:cifar10.resnet50.pairwise_constraints",
  "soft_calibration.py:imagenet2012.resnet50.cross_entropy+avuc_gs",
  "soft_calibration.py:cifar10.wide_resnet28_10.cross_entropy+soft_binned_ece",
  "classwise_loss_scaling.py:cifar10.densenet40.focal_3"])
def test_losses_of_every_paper_are_sound(cell):
  run_config.check(run_config.load(f"configs/{cell}", []), num_devices=8)


PRINTED = {  # Fields of cells, whose boundaries are fractions of their epochs.
  "focal_temperature.py:cifar10.resnet50": {"optimizer.boundaries": (150 / 350, 250 / 350), "training.num_epochs": 350},
  "focal_temperature.py:cifar10.resnet50.focal_7": {
    "loss.primary.gamma": 7.0, "loss.reduction": "sum", "optimizer.clip_norm": 2.0,
    "optimizer.coupled_weight_decay": 5e-4, "num_seeds": 5},
  "focal_temperature.py:tiny_imagenet.resnet50": {"training.batch_size": 64, "model.pool_side": 2},
  "mac_cal.py:cifar10.resnet50.dual_focal": {
    "loss.primary.gamma": 5.0, "loss.primary.competitor": "strongest_below", "loss.reduction": "sum"},
  "mac_cal.py:cifar100.densenet121.mmce": {
    "loss.weight": 256.0, "loss.secondary.weighted": True, "loss.secondary.variant": "released"},
  "mac_cal.py:cifar100.resnet110": {"model.name": "resnet110_bottleneck"},
  "mac_cal.py:cifar100.wide_resnet26_10": {"model.post_activation": True},
  "mac_cal.py:tiny_imagenet.resnet50": {
    "training.batch_size": 128, "seed": 1, "optimizer.boundaries": (0.4, 0.6), "training.num_epochs": 100},
  "reweighted_risk.py:cifar10.resnet50.dual_focal": {
    "loss.primary.gamma": 5.0, "loss.reduction": "mean", "training.num_epochs": 200, "optimizer.decay": 0.2},
  "reweighted_risk.py:cifar10.resnet50.selective_risk": {
    "loss.primary.variant": "released", "loss.primary.confidence": "msp"},
  "reweighted_risk.py:cifar10.resnet110.inverse_focal": {"loss.primary.gamma": 3, "training.batch_size": 128},
  "reweighted_risk.py:cifar100.preresnet56.kde_ece": {
    "loss.secondary.form": "canonical", "loss.weight": 0.5, "training.num_epochs": 250,
    "optimizer.boundaries": (60 / 250, 120 / 250, 160 / 250)},
  "reweighted_risk.py:cifar10.preresnet56": {"model.name": "preresnet56_bottleneck"},
  "reweighted_risk.py:cifar100.resnet110.dual_focal": {"loss.primary.gamma": 6.1},
  "reweighted_risk.py:tiny_imagenet.vit_small": {
    "optimizer.name": "sgd", "optimizer.learning_rate": 1e-4, "optimizer.schedule": "cosine", "model.image_size": 224,
    "data.validation_fraction": 0.05, "num_seeds": 3},
  "reweighted_risk.py:tiny_imagenet.vit_small.kde_ece": {"loss.weight": 0.3},
  "soft_calibration.py:imagenet2012.resnet50": {
    "training.batch_size": 512, "optimizer.learning_rate": 0.2, "optimizer.l2": 1e-4, "num_seeds": 10,
    "optimizer.nesterov": True, "optimizer.decay_norms_and_biases": False},
  "cifar100_savuc.py": {"training.batch_size": 512, "optimizer.learning_rate": 0.4, "num_seeds": 1,
                        "augmentation.padding": 2, "optimizer.nesterov": True},
  "classwise_loss_scaling.py:cifar10_lt.resnet110_stochastic_depth": {
    "optimizer.learning_rate": 0.04, "optimizer.coupled_weight_decay": 1e-4},
  "classwise_loss_scaling.py:imagenet2012.densenet161": {
    "training.batch_size": 256, "optimizer.warmup_epochs": 5, "optimizer.decay_norms_and_biases": False,
    "optimizer.boundaries": (30 / 90, 60 / 90, 80 / 90), "training.num_epochs": 90}}


def _values(config):
  """What the header of a config says of its optimizer and its length."""
  optimizer, training = config.optimizer, config.training
  decay = [f"{key.replace('_', ' ')} {optimizer[key]:g}" for key in ("weight_decay", "coupled_weight_decay", "l2")
           if optimizer[key]]
  return (f"{optimizer.name}, rate {optimizer.learning_rate:g}, {training.num_epochs} epochs, batch "
          f"{training.batch_size}, {', '.join(decay) or 'no decay'}")


@pytest.mark.parametrize("name", ["cifar100_savuc", "digits_savuc", "fashion_mnist_small_savuc", "npz", *(
  paper.__name__.removeprefix("configs.") for paper in PAPERS.values())])
def test_the_header_has_the_values_of_the_config(name):
  module = importlib.import_module(f"configs.{name}")
  if not hasattr(module, "NETWORKS"):
    assert f"\nValues: {_values(module.get_config())}.\n" in module.__doc__
    return
  said = {name: values for names, values in re.findall("^  (.*): (.*, rate .*)$", module.__doc__, re.MULTILINE)
          for name in names.split(", ")}
  for source, networks in module.NETWORKS.items():
    for network in networks:
      cell = f"{source}.{network}"
      assert said.get(source, said.get(cell)) == _values(module.get_config(cell))


def test_cells_hold_the_printed_values():
  for cell, fields in PRINTED.items():
    config = run_config.load(f"configs/{cell}", [])
    assert {key: run_config.get(config, key) for key in fields} == fields, cell
  printed = [row for networks in reweighted_risk.NETWORKS.values() for row in networks.values()]
  smoothing, coverage = zip(*(row[3:1:-1] for row in printed), strict=True)
  assert coverage == (0.9, 0.9, 0.8, 0.8, 0.9, 0.8, 0.8, 0.9, 0.2, 0.4)  # Table 3 of Zhou et al. 2025, in its order.
  assert smoothing == (0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.1, 0.01, 0.05, 0.1)  # Appendix E.2.


@pytest.mark.parametrize(("argument", "message"), [
  ("reweighted_risk.py:cifar100.preresnet56.selective", "the cell 'cifar100.preresnet56.selective' must be "
   "DATA.NETWORK or DATA.NETWORK.LOSS, with LOSS one of cross_entropy, sample_dependent_focal, inverse_focal, "
   "dual_focal, kde_ece, aurc, selective_risk, selective_risk_clamped, selective_risk_no_gradient: "
   r"got 'selective'\. Did you mean 'selective_risk'\?$"),
  ("mac_cal.py:cifar10.resnet5", "with NETWORK one of resnet50, resnet110, wide_resnet26_10, densenet121: got "
   r"'resnet5'\. Did you mean 'resnet50'\?$"),
  ("mac_cal.py:tiny_imagenet.resnet110", r"with NETWORK one of resnet50: got 'resnet110'"),
  ("mac_cal.py:cifar1.resnet50", r"with DATA one of cifar10, cifar100, tiny_imagenet: got 'cifar1'\. Did you mean"),
  ("mac_cal.py:cifar10", r"the cell 'cifar10' must be .*, with NETWORK one of resnet50, .*: got ''\.$"),
  ("mac_cal.py:cifar10.resnet50.", r"with LOSS one of cross_entropy, .*: got ''\.$"),
  ("mac_cal.py:cifar10.resnet50.mmce.focal", r"with LOSS one of cross_entropy, .*: got 'mmce\.focal'"),
  ("soft_calibration.py:imagenet2012.resnet50.focal+mmce", r"with LOSS one of cross_entropy, .*: got 'focal\+mmce'"),
  ("soft_calibration.py", "configs/soft_calibration.py: a cell must follow after a colon, as DATA.NETWORK.LOSS, or "
   "DATA.NETWORK for cross entropy: there are cifar100 with wide_resnet28_10; cifar10 with wide_resnet28_10; "
   r"imagenet2012 with resnet50\.$"),
  ("soft_calibration.py:", "a cell must follow after a colon"),
  ("digits_savuc.py:focal", "digits_savuc.py: it has no cells: leave out ':focal'"),
  ("absent.py:cifar10.resnet50", "there is no file 'configs/absent.py'"),
])
def test_a_wrong_cell_is_one_sentence_that_lists_what_there_is(argument, message):
  with pytest.raises(UserError, match=message) as error:
    run_config.load(f"configs/{argument}", [])
  assert "\n" not in str(error.value)


def test_the_page_of_the_papers_has_every_cell():
  page = pathlib.Path("docs/recipes.md").read_text(encoding="utf-8")
  for name, paper in PAPERS.items():
    row, = re.findall(rf"^\| {name}, .*`{FILES[paper]}`.*$", page, re.MULTILINE)
    named = {word for quoted in re.findall(r"`(.*?)`", row) for word in re.split(r"[+]", quoted) if word}
    losses = {re.sub("^.*_masked$", "LOSS_masked", part) for data_name in paper.NETWORKS
              for model in paper.NETWORKS[data_name] for loss in paper.losses(data_name, model)
              for part in loss.split("+")}
    networks = {model for models_of_data in paper.NETWORKS.values() for model in models_of_data}
    assert {*paper.NETWORKS, *networks, *losses} <= named | {"cross_entropy"}
    assert named - {FILES[paper], "configs/cifar100_savuc.py", "FT"} <= {*paper.NETWORKS, *networks, *losses}


def _changed(config, default, prefix=""):
  """The fields of a paper's config that differ from the defaults; a section that names a function is one field."""
  for name, value in config.items():
    key = f"{prefix}{name}"
    if key in ("evaluation", "checkpoint", "stage2"):
      continue
    if name in ("primary", "secondary", "augmentation") and value != default[name]:
      yield key
    elif isinstance(value, ConfigDict) and name not in ("primary", "secondary", "augmentation"):
      yield from _changed(value, default.get(name, {}), f"{key}.")
    elif value != default.get(name):
      yield key


def test_the_table_of_the_papers_has_every_field_that_their_configs_change():
  page = pathlib.Path("configs/README.md").read_text(encoding="utf-8")
  table = page.split("| field | SC | RR | FT | CL | MC |")[1]
  rows = {}
  for line in table.splitlines()[2:]:
    if not line.startswith("|"):
      break
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    section = ""
    for name in re.findall(r"`([\w.]+)`", cells[0]):
      section = name.rpartition(".")[0] if "." in name else section
      rows[name if "." in name or name in common.get_config() else f"{section}.{name}"] = cells[1:]
  papers = {"SC": soft_calibration.recipe("cifar10", "wide_resnet28_10"),
            "RR": reweighted_risk.recipe("tiny_imagenet", "vit_small"),
            "FT": focal_temperature.recipe("cifar10", "resnet50"),
            "CL": classwise_loss_scaling.recipe("cifar10_lt", "densenet40"),
            "MC": mac_cal.recipe("tiny_imagenet", "resnet50")}
  about_the_network = {"data.name", "model.pool_side", "model.hidden", "training.seeds_together",
                       "training.evaluate_every_epochs"}
  for paper, config in papers.items():
    for field in set(_changed(config, common.get_config())) - about_the_network:
      assert field in rows, f"{paper} sets {field}"
      assert rows[field][list(papers).index(paper)], f"the table says nothing about {field} of {paper}"
  for position, (name, paper) in enumerate(PAPERS.items()):  # What single losses and methods set besides.
    cells_of_the_paper = [(data_name, model) for data_name in paper.NETWORKS for model in paper.NETWORKS[data_name]]
    of_methods = {field for cell in cells_of_the_paper for fields in paper.losses(*cell).values() for field in fields}
    for field in of_methods - about_the_network:
      assert field in rows, f"a method of {name} sets {field}"
      assert rows[field][position], f"the table says nothing about {field} of {name}"
