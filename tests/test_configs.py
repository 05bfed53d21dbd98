"""Every config builds its model on its data's shapes."""

import pathlib
import re

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import pytest

from calib_jax import config as run_config
from calib_jax import data, models
from calib_jax.errors import UserError
from configs import common, recipes, variants

CONFIGS = sorted(path for path in pathlib.Path("configs").glob("*.py")
                 if path.stem not in ("__init__", "common", "recipes", "variants", "npz"))  # test_own_code has npz.
SHAPES = {"digits": ((8, 8, 1), 10), "fashion_mnist_small": ((28, 28, 1), 10),
          "cifar10": ((32, 32, 3), 10), "cifar100": ((32, 32, 3), 100),
          "tiny_imagenet": ((64, 64, 3), 200), "imagenet2012": ((224, 224, 3), 1000)}


FAST = ("digits_savuc", "cifar100_savuc", "cifar10_lt_densenet40", "tiny_imagenet_vit_small")  # Of every family one.


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.slow)
                                  for path in CONFIGS])
def test_the_config_is_sound_and_its_model_fits_its_data(path):
  config = run_config.load(str(path), [])
  run_config.check(config, num_devices=1)
  run_config.check(config, num_devices=8)
  assert config.data.name in data.SOURCES and path.stem.startswith(config.data.name)
  assert path.stem in ("digits_savuc", "fashion_mnist_small_savuc", "cifar100_savuc") or path.stem.endswith(
    config.model.name.removesuffix("_bottleneck"))
  shape, num_classes = SHAPES[config.data.name.removesuffix("_lt")]
  model = models.get(num_classes=num_classes, **config.model)
  logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.zeros((2, *shape)))
  assert logits.shape == (2, num_classes) and logits.dtype == jnp.float32
  assert f"configs/{path.name}" in path.read_text() and len(path.read_text().splitlines()) < 40


def test_boundaries_are_at_the_printed_epochs():
  def epochs(name):
    config = run_config.load(f"configs/{name}.py", [])
    return [round(b * config.training.num_epochs, 6) for b in config.optimizer.boundaries], config.training.num_epochs

  assert epochs("cifar10_resnet50") == ([150, 250], 350) and epochs("tiny_imagenet_resnet50") == ([40, 60], 100)
  assert epochs("cifar100_preresnet56") == ([60, 120, 160], 250) and epochs("cifar10_preresnet56")[1] == 200


def _cells():
  """Every variant that the configs have, as ``(path, variant)``."""
  for path in CONFIGS:
    call = re.search(r'recipes.config\("(\w+)", "(\w+)", variant,\s+(.*)\)', path.read_text())
    for paper in re.findall(r'"(\w+)"', call[3]) if call else ():
      for loss in variants.PAPERS.get(paper, lambda data, model: {})(call[1], call[2]):
        yield f"{path}:{paper}.{loss}"


CELLS = sorted(_cells())


def test_every_variant_loads_and_trains_the_loss_that_it_names():
  assert len(CELLS) > 150
  for cell in CELLS:
    config = run_config.load(cell, [])
    loss = cell.rpartition(".")[2]
    names = {config.loss.primary.name, config.loss.secondary.name, config.augmentation.name,
             config.head.name,
             re.sub(r"^avuc$", "avuc_gs", config.loss.secondary.name),
             "label_smoothing" if config.loss.primary.get("label_smoothing") else ""}
    for part in loss.split("+"):
      assert re.sub(r"_\d+$", "", part) in names, cell


@pytest.mark.parametrize("cell", [
  "configs/cifar10_preresnet56.py:selective_risk", "configs/cifar100_wide_resnet28_10.py:kde_ece",
  "configs/cifar100_resnet110.py:mmce", "configs/cifar10_resnet50.py:adaptive_focal",
  "configs/tiny_imagenet_resnet50.py:mac_cal.mixup", "configs/cifar10_resnet50.py:pairwise_constraints",
  "configs/imagenet2012_resnet50.py:cross_entropy+avuc_gs",
  "configs/cifar10_wide_resnet28_10.py:cross_entropy+soft_binned_ece"])
def test_variants_of_every_paper_are_sound(cell):
  run_config.check(run_config.load(cell, []), num_devices=8)


def _printed(cell, *keys):
  config = run_config.load(cell, [])
  return [run_config.get(config, key) for key in keys]


def test_variants_hold_the_printed_values():
  resnet50 = "configs/cifar10_resnet50.py"
  assert _printed(f"{resnet50}:dual_focal", "loss.primary.gamma", "loss.primary.competitor", "loss.reduction") == [
    5.0, "strongest_below", "sum"]  # The first paper of the file that has it is Ni et al.
  assert _printed(f"{resnet50}:reweighted_risk.dual_focal", "loss.primary.gamma", "loss.reduction",
                  "training.num_epochs", "optimizer.decay") == [5.0, "mean", 200, 0.2]
  assert _printed("configs/cifar100_resnet110.py:reweighted_risk.dual_focal", "loss.primary.gamma") == [6.1]
  assert _printed("configs/cifar10_resnet110.py:inverse_focal", "loss.primary.gamma", "training.batch_size") == [3, 128]
  assert _printed("configs/cifar100_preresnet56.py:kde_ece", "loss.secondary.form", "loss.weight") == ["canonical", 0.5]
  assert _printed("configs/tiny_imagenet_vit_small.py", "optimizer.name", "optimizer.learning_rate", "model.image_size",
                  "data.validation_fraction", "num_seeds") == ["sgd", 1e-4, 224, 0.05, 3]
  assert _printed(f"{resnet50}:focal_7", "loss.primary.gamma", "loss.reduction", "optimizer.clip_norm",
                  "optimizer.coupled_weight_decay", "num_seeds") == [7.0, "sum", 2.0, 5e-4, 5]
  assert _printed("configs/tiny_imagenet_resnet50.py", "training.batch_size", "model.pool_side") == [64, 2]
  assert _printed("configs/tiny_imagenet_resnet50.py:mac_cal", "training.batch_size", "seed") == [128, 1]
  assert _printed("configs/cifar100_resnet110.py", "model.name") == ["resnet110_bottleneck"]
  assert _printed("configs/cifar100_wide_resnet26_10.py", "model.post_activation") == [True]
  assert _printed("configs/cifar100_densenet121.py:mmce", "loss.weight", "loss.secondary.weighted") == [256.0, True]
  assert _printed("configs/imagenet2012_resnet50.py", "training.batch_size", "optimizer.learning_rate") == [512, 0.2]
  assert _printed("configs/cifar100_savuc.py", "training.batch_size", "optimizer.learning_rate") == [512, 0.4]
  assert _printed("configs/cifar10_lt_resnet110_stochastic_depth.py", "optimizer.learning_rate",
                  "optimizer.coupled_weight_decay") == [0.04, 1e-4]
  smoothing, coverage = zip(*(row[3:1:-1] for row in variants._RR.values()), strict=True)
  assert coverage == (0.9, 0.9, 0.8, 0.8, 0.9, 0.8, 0.8, 0.9, 0.2, 0.4)  # Table 3 of Zhou et al. 2025, in its order.
  assert smoothing == (0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.1, 0.01, 0.05, 0.1)  # Appendix E.2.


@pytest.mark.parametrize(("argument", "message"), [
  ("configs/cifar100_preresnet56.py:selective", "there is no variant 'selective'; known are reweighted_risk: "
   "cross_entropy, sample_dependent_focal, inverse_focal, dual_focal, kde_ece, aurc, selective_risk. Write one as"),
  ("configs/cifar10_resnet50.py:mac_cal.focal_3", "no variant 'mac_cal.focal_3'; known are .*; mac_cal: "),
  ("configs/cifar10_resnet50.py:zhou.focal", "no variant 'zhou.focal'"),
  ("configs/digits_savuc.py:focal", "digits_savuc.py: it has no variants: leave out ':focal'"),
  ("configs/absent.py:focal", "there is no file 'configs/absent.py'"),
])
def test_an_unknown_variant_is_one_sentence_that_lists_the_known_ones(argument, message):
  with pytest.raises(UserError, match=message) as error:
    run_config.load(argument, [])
  assert "\n" not in str(error.value)


def test_a_paper_or_a_loss_or_both_choose_a_variant():
  papers = ("cifar10", "resnet50", "focal_temperature", "mac_cal")
  assert recipes.config(*papers[:2], "", *papers[2:]) == recipes.config(*papers[:2], "focal_temperature", *papers[2:])
  assert recipes.config(*papers[:2], "focal", *papers[2:]) == recipes.config(*papers[:2], "mac_cal.focal", *papers[2:])


def _changed(config, default, prefix=""):
  """The fields of a paper's config that differ from the defaults; a section that names a function is one field."""
  for name, value in config.items():
    key = f"{prefix}{name}"
    if key in ("evaluation", "checkpoint", "stage1", "stage2"):
      continue
    if name in ("primary", "secondary", "augmentation") and value != default[name]:
      yield key
    elif isinstance(value, ConfigDict) and name not in ("primary", "secondary", "augmentation"):
      yield from _changed(value, default.get(name, {}), f"{key}.")
    elif value != default.get(name):
      yield key


def test_the_table_of_the_papers_has_every_field_that_their_configs_change():
  page = pathlib.Path("docs/data_and_models.md").read_text(encoding="utf-8")
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
  papers = {"SC": recipes.soft_calibration("cifar10", "wide_resnet28_10"),
            "RR": recipes.reweighted_risk("tiny_imagenet", "vit_small"),
            "FT": recipes.focal_temperature("cifar10", "resnet50"),
            "CL": recipes.classwise_loss_scaling("cifar10_lt", "densenet40"),
            "MC": recipes.mac_cal("tiny_imagenet", "resnet50")}
  about_the_network = {"data.name", "model.pool_side", "model.hidden", "training.seeds_together",
                       "training.evaluate_every_epochs"}
  for paper, config in papers.items():
    for field in set(_changed(config, common.get_config())) - about_the_network:
      assert field in rows, f"{paper} sets {field}"
      assert rows[field][list(papers).index(paper)], f"the table says nothing about {field} of {paper}"
