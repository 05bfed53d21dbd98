"""Refuses a config that cannot work, before any data is read."""

from collections.abc import Callable, Iterable
import functools
import inspect
import math
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from calib_jax import _checks as checks
from calib_jax import calibrators, training
from calib_jax._system import capacity
from calib_jax._system.errors import LONGEST, UserError, short
from calib_jax._system.files import stem
from calib_jax.evaluation.predictions.automatic import AUTO
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.training import data, models
from calib_jax.training.config.imports import is_import_path
from calib_jax.training.data.augmentation import MIXED_LABELS
from calib_jax.training.data.sources import LONG_TAIL
from calib_jax.training.engine.objectives import second_loss
from calib_jax.training.last_layer.laplace import HESSIANS

CHOICES: dict[str, Any] = {
  "data.corruption": ("", *data.CORRUPTIONS),
  "loss.scope": ("global", "device"), "loss.reduction": ("mean", "sum"), "training.select": training.SELECTIONS,
  "training.average": training.AVERAGES, "training.parallel": ("auto", "pmap", "shard_map"),
  "training.validation_loss": training.VALIDATION_LOSSES,
  **{f"{prefix}optimizer.{key}": choices for prefix in ("", "stage2.")
     for key, choices in (("name", training.OPTIMIZERS), ("schedule", training.RATES))},
  "model.dtype": ("float32", "bfloat16"), "evaluation.laplace": ("", *HESSIANS),
}

FILES = ("npz", "arrays")  # The data sets of ``data.path``.
_ANY, _COUNT = (0, math.inf), (1, math.inf)
RANGES: dict[str, Any] = {
  "seed": (0, 2**31 - 1), "num_seeds": (1, 10_000), "data.validation_fraction": (0.001, 0.9),
  "data.held_out_fraction": (0.001, 0.9), "data.split_seed": (-1, 2**31 - 1), "data.severity": (1, 5),
  "model.image_size": (0, 4096), "model.dropout": (0, 0.999), "training.average_decay": (0.1, 1),
  "training.average_fraction": (0, 1), "evaluation.num_bins": (1, 10_000), "evaluation.num_resamples": (2, math.inf),
  "evaluation.samples": (0, 10_000),
  **{f"{prefix}optimizer.{key}": limits for prefix in ("", "stage2.") for key, limits in {
    "momentum": (0, 0.9999), "decay": (0, 1), "clip_norm": (1e-30, math.inf), **dict.fromkeys((
      "learning_rate", "l2", "weight_decay", "coupled_weight_decay", "warmup_epochs", "sharpness"), _ANY)}.items()},
  **{f"training.{key}": _COUNT for key in ("batch_size", "accumulation_steps", "patience", "num_epochs", "num_steps",
                                           "log_every_steps", "evaluate_every_epochs")},
  **dict.fromkeys(("checkpoint.keep", "checkpoint.every_steps"), _COUNT),
  **dict.fromkeys(("loss.weight", "training.select_after_epochs", "training.max_skipped_steps",
                   "checkpoint.every_minutes", "profile"), _ANY)}

# What is neither a choice nor a number.
TYPES: dict[type, tuple[str, ...]] = {
  bool: ("compare_with_cross_entropy", "training.seeds_together", "evaluation.save_features",
         "evaluation.predict_train", "evaluation.recommended", "evaluation.ensemble",
         *(f"{prefix}optimizer.{key}" for prefix in ("", "stage2.") for key in ("nesterov", "decay_norms_and_biases"))),
  tuple: ("evaluation.corruptions", "evaluation.severities", "evaluation.ood", "optimizer.boundaries",
          "stage2.optimizer.boundaries"),
  str: ("data.dir", "data.path", "model.weights")}

IMAGES = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)  # The images that models are traced on.


def check(config: ml_collections.ConfigDict, num_devices: int) -> None:
  """Raises a UserError that names the key and its valid values if ``config`` cannot work on ``num_devices``."""
  check_fields(config)
  if config.data.name in FILES and not config.data.path:
    raise UserError("config key data.path must name the .npz file: --config.data.path=my_images.npz.")
  _attempt("schedule", lambda: training.plan(config))
  _check_optimizer(config, "optimizer", "training.num_epochs")
  _check_optimizer(config, "stage2.optimizer", "schedule.stage2_epochs")
  _check_batch_size(config, "training.batch_size", num_devices)
  if "stage2_batch_size" in config.schedule:
    _check_batch_size(config, "schedule.stage2_batch_size", num_devices)
  if config.training.patience and config.training.select == "last":
    raise UserError("config key training.patience needs training.select 'best' or 'refined', which compare the "
                    "evaluations: --config.training.select=best.")
  if config.evaluation.ensemble and (config.num_seeds < 2 or config.data.split_seed < 0):
    raise UserError("config key evaluation.ensemble needs the models of several seeds, and one validation split for "
                    "all of them: --config.num_seeds=5 --config.data.split_seed=0.")
  _check_evaluation(config.evaluation)
  _check_ood(config)
  _check_by_building(config)


def check_fields(config: ml_collections.ConfigDict) -> None:
  """Raises a UserError that names the key unless each field, on its own, is one of its choices or of its type."""
  for key in ("seed", "num_seeds", "training.batch_size", "evaluation.num_bins", "evaluation.num_resamples",
              "evaluation.samples"):
    value = get(config, key)
    if isinstance(value, bool) or not isinstance(value, int):
      raise UserError(f"config key {key} must be an integer: got {short(value)}.")
  for key, choices in CHOICES.items():
    one_of(key, get(config, key), choices)
  for key, (low, high) in RANGES.items():
    _in_range(key, get(config, key), low, high)
  for kind, keys in TYPES.items():
    for key in keys:
      check_type(key, get(config, key), kind)
  for key, choices in (("evaluation.corruptions", data.CORRUPTIONS), ("evaluation.ood", data.SOURCES)):
    for entry in get(config, key):
      if not isinstance(entry, str):
        one_of(key, entry, choices)
  if not isinstance(get(config, "evaluation.calibrators"), ml_collections.ConfigDict):
    raise UserError("config key evaluation.calibrators must be a section of calibrators by label: got "
                    f"{short(config.evaluation.calibrators)}.")


def check_type(key: str, value: object, kind: type) -> None:
  """Raises a UserError that names the key unless ``value`` is of the type ``kind``; an int is a float too."""
  kinds = (int, float) if kind is float else kind
  if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
    raise UserError(f"config key {key} must be of type {kind.__name__}: got {short(value)}.")
  if isinstance(value, int) and abs(value) >= 2**31:
    raise UserError(f"config key {key} must be less than 2^31: got {value:g}.")


def get(config: ml_collections.ConfigDict, key: str) -> Any:
  """Returns the value of a dotted key.

  Raises:
    UserError: if there is none.
  """
  for part in key.split("."):
    if not isinstance(config, ml_collections.ConfigDict) or part not in config:
      raise UserError(f"config key {key} is missing: configs/common.py lists all keys.")
    config = config[part]
  return config


def one_of(key: str, value: object, choices: Iterable[str], advice: str = "") -> None:
  """Raises a UserError that names the key and its choices, and ends in ``advice``, unless ``value`` is one of them."""
  if not any(value == choice for choice in choices):
    listed = ", ".join(str(k) or "'' for none" for k in choices) or "nothing"
    raise UserError(f"config key {key} must be one of {listed}: got {short(value)}."
                    + (checks.suggestion(str(value)[:LONGEST], choices) or advice))


def _in_range(key: str, value, low: float, high: float) -> None:
  """Raises a UserError unless ``value`` is None or a number in ``[low, high]``."""
  if value is None:
    return
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise UserError(f"config key {key} must be a number: got {short(value)}.")
  if isinstance(value, int) and value >= 2**31:
    raise UserError(f"config key {key} must be less than 2^31: got {value:g}.")
  if not low <= value <= high:
    bounds = f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
    raise UserError(f"config key {key} must be {bounds}: got {value:g}.")


def _check_optimizer(config: ml_collections.ConfigDict, section: str, epochs_key: str) -> None:
  """Checks the learning-rate schedule of a stage against its number of epochs."""
  boundaries, warmup = get(config, f"{section}.boundaries"), get(config, f"{section}.warmup_epochs")
  fractions = all(isinstance(b, int | float) and 0 < b < 1 for b in boundaries)
  if not fractions or list(boundaries) != sorted(boundaries):
    raise UserError(f"config key {section}.boundaries must hold fractions of the run, in (0, 1) and ascending: "
                    f"got {short(boundaries)}.")
  section_of_epochs, field = epochs_key.split(".")
  num_epochs = config[section_of_epochs].get(field, math.inf)  # A schedule of one stage has no second one.
  if config.training.num_steps is None and warmup > max(num_epochs, 1):
    raise UserError(f"config key {section}.warmup_epochs must be at most {epochs_key}, {num_epochs}: got {warmup}.")


def _check_batch_size(config: ml_collections.ConfigDict, key: str, num_devices: int) -> None:
  """Checks that the devices, and the parts of an accumulated batch, share a batch evenly."""
  size, parts = get(config, key), config.training.accumulation_steps
  if size % (num_devices * parts):
    near = max(round(size / (num_devices * parts)), 1) * num_devices * parts
    times = f" times training.accumulation_steps ({parts})" if parts > 1 else ""
    raise UserError(f"config key {key} must be divisible by the {num_devices} devices that share a batch"
                    f"{times}: got {size}; use {near}, for example.")


def _check_evaluation(section: ml_collections.ConfigDict) -> None:
  """Builds the calibrators, and checks their labels and the names of the evaluation sets."""
  files = [stem(label) for label in section.calibrators]
  for label in section.calibrators:
    if label in (UNCALIBRATED, AUTO) or files.count(stem(label)) > 1:
      of = "another calibrator's file" if files.count(stem(label)) > 1 else "rows of another kind"
      raise UserError(f"config key evaluation.calibrators: the label {short(label)} is that of {of}: choose another "
                      "one.")
  for label, options in section.calibrators.items():
    key = f"evaluation.calibrators.{label}"
    if not isinstance(_attempt(key, lambda options=options: calibrators.get(**options)), calibrators.Calibrator):
      raise UserError(f"config key {key}: {options.name} must return a calib_jax.calibrators.Calibrator.")
  for level in section.severities:
    one_of("evaluation.severities", level, (1, 2, 3, 4, 5))
  for entry in section.corruptions:
    if not is_published(entry):
      one_of("evaluation.corruptions", entry, data.CORRUPTIONS)
  names = _published_names(section)
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(f"config key evaluation.corruptions: two files would be called {short(twice[0])} in tables: rename "
                    "a folder, or leave one of them out.")


def is_published(entry: str) -> bool:
  """Returns whether an entry of ``evaluation.corruptions`` is the path of published images.

  It is then a folder, whose path has a slash, or a file that ends in ``.npy``, rather than the name of a corruption.
  """
  return isinstance(entry, str) and ("/" in entry or entry.endswith(".npy"))


def _published_names(section: ml_collections.ConfigDict) -> list[str]:
  return [name for path in filter(is_published, section.corruptions) for name in data.published_files(path)]


def is_file(entry: str) -> bool:
  """Returns whether an entry of ``evaluation.ood`` is the path of a file rather than the name of a data set."""
  return entry.endswith(".npz")


def ood_name(entry: str) -> str:
  """Returns the name in tables of an entry of ``evaluation.ood``."""
  return pathlib.PurePath(entry).stem if is_file(entry) else entry


def _check_ood(config: ml_collections.ConfigDict) -> None:
  """Checks that every entry of ``evaluation.ood`` has a name of its own and is not the run's own data."""
  key, taken = "config key evaluation.ood", {"test", "validation", "train"}
  corrupted = (*data.CORRUPTIONS, *_published_names(config.evaluation))
  taken |= {f"{name}_{level}" for name in corrupted for level in config.evaluation.severities}
  for entry in config.evaluation.ood:
    if isinstance(entry, str) and is_file(entry):
      own = config.data.path if config.data.name.removesuffix(LONG_TAIL) in FILES else ""
      is_own = entry == own or (os.path.exists(entry) and os.path.exists(own) and os.path.samefile(entry, own))
    else:
      one_of("evaluation.ood", entry, data.SOURCES)
      if "path" in inspect.signature(data.SOURCES[entry]).parameters:
        raise UserError(f"{key}: {entry} needs a file, and data.path is that of the run's own data: give the path of "
                        "another file, which ends in .npz, such as --config.evaluation.ood=('other.npz',).")
      is_own = entry.removesuffix(LONG_TAIL) == config.data.name.removesuffix(LONG_TAIL)
    if is_own:
      raise UserError(f"{key}: {short(entry)} is the run's own data, which is not out of distribution: name another "
                      "data set or file.")
    if (name := ood_name(entry)) in taken:
      raise UserError(f"{key}: {short(entry)} would be called {short(name)} in tables, which is the name of another "
                      "set: rename the file, or leave one of them out.")
    taken.add(name)


def _check_by_building(config: ml_collections.ConfigDict) -> None:
  """Builds what a config describes, traced on shapes: losses, models and schedules check their own options."""
  mixing = config.augmentation.name
  soft = mixing in MIXED_LABELS
  labels = jnp.zeros((2, 3)) if soft else jnp.zeros(2, jnp.int32)
  states = _attempt("loss", lambda: {name: method.init() for name, method in training.of_loss(config.loss, 3).items()})
  _attempt(f"augmentation.name {mixing}, whose labels are mixed" if soft else "loss",
           lambda: jax.eval_shape(lambda z: training.objective(config.loss)(z, labels, loss_states=states),
                                  jnp.zeros((2, 3))),
           own=is_import_path(config.loss.primary.name) or is_import_path(config.loss.secondary.name))
  if second := config.stage2.loss.name:
    _attempt("stage2.loss", lambda: jax.eval_shape(
      lambda z: training.objective(second_loss(config.stage2.loss))(z, labels), jnp.zeros((2, 3))),
             own=is_import_path(second))
  _attempt("augmentation", lambda: data.build_augmentation(num_classes=3, **config.augmentation))
  own = is_import_path(config.model.name) or is_import_path(config.head.name)
  model = _attempt("model", lambda: models.get(num_classes=3, head=config.head, **config.model), own=own)
  if config.data.name.removesuffix(LONG_TAIL) == "arrays" or is_import_path(config.data.name):
    return  # The shape of the data is known when they are read: ``training.check_model`` traces the model then.
  num_models = config.num_seeds if config.training.seeds_together else 1
  shapes = _attempt("model", lambda: _shapes(model), own=own)
  capacity.check_model(shapes, num_models)
  training.check_samples(config, model, shapes, IMAGES)


def _shapes(model: models.Classifier):
  """Returns the shapes of a model's variables, which are traced once for the many configs of an experiment."""
  try:
    hash(model)
  except TypeError:  # A model of one's own may have an array as a field.
    return _traced_shapes.__wrapped__(model)
  return _traced_shapes(model)


@functools.lru_cache(maxsize=64)
def _traced_shapes(model: models.Classifier):
  return jax.eval_shape(model.init, jax.random.key(0), IMAGES)


def _attempt(key: str, build: Callable, own: bool = False):
  """Returns what ``build`` returns; an error about options, any if it is the user's ``own``, is one about ``key``."""
  try:
    return build()
  except Exception as error:
    if not own and not isinstance(error, ValueError | TypeError | ArithmeticError | MemoryError):
      raise
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise UserError(f"config key {key}: {reason[:500]}") from error
