"""Reading a run's config from a file and the command line, and refusing what cannot work before any data is read."""

from collections.abc import Callable, Iterable, Mapping
import difflib
import importlib.util
import inspect
import math
import pathlib
import re
from typing import NamedTuple

from absl import flags
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict, config_dict, config_flags

from calib_jax import calibrators, data, losses, models, training
from calib_jax.errors import UserError


class Family(NamedTuple):
  """What the ``name`` of a section may be, and which arguments of those functions are not for a config to set.

  ``common`` are options of the section whatever its name, with their defaults.
  """

  known: Mapping[str, Callable]
  hidden: tuple[str, ...]
  common: Mapping[str, object] = {}


SECTIONS = {
  "data": Family(data.SOURCES, ("seed", "dir", "path", "corruption", "severity", "_"),
                 {"dir": "~/tensorflow_datasets", "path": "", "validation_fraction": 0.1, "held_out_fraction": 0.1,
                  "corruption": "", "severity": 1}),
  "augmentation": Family(data.AUGMENTATIONS, ("images", "keys", "labels", "mask", "key", "axis_name", "num_classes")),
  "model": Family(models.MODELS, ("num_classes", "axis_name", "parent", "name", "dtype"),
                  {"dtype": "float32"}),
  "loss.primary": Family({**losses.PER_EXAMPLE, **training.STATEFUL}, ("logits", "labels")),
  "loss.secondary": Family({"": lambda: None, **losses.PER_BATCH}, ("logits", "labels", "where", "axis_name")),
}

CHOICES = {
  "data.corruption": ("", *data.CORRUPTIONS), "training.schedule": training.EPOCHS,
  "loss.scope": ("global", "device"), "training.select": ("last", "best"),
  "optimizer.name": training.OPTIMIZERS, "optimizer.schedule": training.SCHEDULES,
  "model.dtype": ("float32", "bfloat16"),
}

RANGES = {
  "seed": (0, 2**31 - 1), "num_seeds": (1, 10_000), "data.validation_fraction": (0.001, 0.9),
  "data.held_out_fraction": (0.001, 0.9),
  "data.severity": (1, 5),
  "loss.weight": (0, math.inf), "optimizer.learning_rate": (0, math.inf), "optimizer.momentum": (0, 0.9999),
  "optimizer.l2": (0, math.inf), "optimizer.weight_decay": (0, math.inf), "optimizer.decay": (0, 1),
  "optimizer.warmup_epochs": (0, math.inf), "optimizer.clip_norm": (1e-30, math.inf),
  "training.batch_size": (1, math.inf), "training.accumulation_steps": (1, math.inf),
  "training.secondary_rate": (0, math.inf), "training.select_after_epochs": (0, math.inf),
  "training.patience": (1, math.inf), "training.max_skipped_steps": (0, math.inf),
  "checkpoint.keep": (1, math.inf), "checkpoint.every_steps": (1, math.inf),
  "checkpoint.every_minutes": (0, math.inf), "profile": (0, math.inf),
  "training.num_epochs": (1, math.inf), "training.num_steps": (1, math.inf),
  "training.log_every_steps": (1, math.inf), "training.evaluate_every_epochs": (1, math.inf),
  "evaluation.num_bins": (1, 10_000), "evaluation.num_resamples": (2, math.inf),
}


def load(path: str, overrides: list[str]) -> ConfigDict:
  """The config of ``get_config()`` in the file ``path``, changed by ``--config.key=value`` arguments.

  A section that names a function (a loss, a model, …) has all of that function's options, at their defaults where the
  file is silent; naming another one there starts from that one's defaults. UserError for a file without ``get_config``,
  an unknown key, or a value of the wrong type.
  """
  config = _from_file(path)
  pairs = [_split(argument) for argument in overrides]
  for key, family in SECTIONS.items():
    _complete(config, key, family, dict(pairs).get(f"{key}.name"))
  for key, value in pairs:
    _set(config, key, value)
  return config.lock()


def check(config: ConfigDict, num_devices: int) -> None:
  """UserError, naming the key and what it may be, for whatever in ``config`` cannot work on ``num_devices``."""
  for key, known in CHOICES.items():
    _one_of(key, _get(config, key), known)
  for key, (low, high) in RANGES.items():
    value = _get(config, key)
    if value is not None and not low <= value <= high:
      raise UserError(f"config key {key} must be in [{low:g}, {high:g}]: got {value:g}.")
  if config.data.name == "npz" and not config.data.path:
    raise UserError("config key data.path must name the .npz file: --config.data.path=my_images.npz.")
  if not all(0 < b < 1 for b in config.optimizer.boundaries):
    raise UserError("config key optimizer.boundaries must hold fractions of the run, in (0, 1): "
                    f"got {config.optimizer.boundaries}.")
  size, parts = config.training.batch_size, config.training.accumulation_steps
  if size % (num_devices * parts):
    near = max(round(size / (num_devices * parts)), 1) * num_devices * parts
    times = f" times training.accumulation_steps ({parts})" if parts > 1 else ""
    raise UserError(f"config key training.batch_size must be divisible by the {num_devices} devices it is spread over"
                    f"{times}: got {size}; {near} would do.")
  if config.training.schedule == "interleaved" and not config.loss.secondary.name:
    raise UserError("config key loss.secondary.name must name the loss of the second phase of training.schedule "
                    "'interleaved': --config.loss.secondary.name=soft_avuc.")
  if config.training.patience and config.training.select != "best":
    raise UserError("config key training.patience stops a run that no longer improves, which training.select 'best' "
                    "follows: --config.training.select=best.")
  for label, section in config.evaluation.calibrators.items():
    key = f"evaluation.calibrators.{label}"
    _one_of(f"{key}.name", section.get("name"), calibrators.CALIBRATORS)
    _attempt(key, lambda section=section: calibrators.get(**section))
  # Traced on shapes only: what a loss or model refuses (a depth, a negative exponent) is refused here.
  soft = config.augmentation.name == "mixup"
  labels = jnp.zeros((2, 3)) if soft else jnp.zeros(2, jnp.int32)
  _attempt("augmentation.name mixup, whose labels are mixed" if soft else "loss",
           lambda: jax.eval_shape(lambda z: training.objective(config.loss)(z, labels, loss_state=training.primary(
             config.loss.primary).init()), jnp.zeros((2, 3))))
  model = _attempt("model", lambda: models.get(num_classes=3, **config.model))
  _attempt("model", lambda: jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3))))


def data_options(config: ConfigDict) -> dict:
  """What ``data.load`` takes of the section ``data``: all but the part that interleaved training holds out."""
  return {key: value for key, value in config.data.items() if key != "held_out_fraction"}


def _from_file(path: str) -> ConfigDict:
  file = pathlib.Path(path)
  if not file.is_file():
    known = sorted(str(p) for p in pathlib.Path("configs").glob("*_*.py") if p.stem != "__init__")
    near = difflib.get_close_matches(path, known, n=3) or known[:3]
    raise UserError(f"--config: there is no file {path!r}; "
                    + (f"configs/ has {len(known)}, such as {', '.join(near)}." if known else "none is in configs/."))
  spec = importlib.util.spec_from_file_location("run_config", file)
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config()
  except Exception as error:  # It is the user's own file: whatever it raises is said in one sentence.
    unknown = re.search(r'Key "(.*?)" does not exist', str(error))
    reason = f"the config has no key {unknown[1]!r}; configs/common.py lists them" if unknown else error
    raise UserError(f"--config: {path} cannot be used ({type(error).__name__}: {reason}).") from error
  if not isinstance(config, ConfigDict):
    raise UserError(f"--config: get_config() of {path} must return a ConfigDict, not {type(config).__name__}.")
  return config.unlock()


def _split(argument: str) -> tuple[str, str]:
  match = re.fullmatch(r"--config\.([^=]+)=(.*)", argument, re.DOTALL)
  if not match:
    raise UserError(f"cannot read the argument {argument!r}: overrides look like --config.training.num_steps=20.")
  return match[1], match[2]


def _complete(config: ConfigDict, key: str, family: Family, renamed: str | None) -> None:
  """Gives a section every option of the function it names, or of ``renamed``, typed by the function's defaults."""
  section = _get(config, key)
  name = section.get("name", "") if renamed is None else renamed
  _one_of(f"{key}.name", name, family.known)
  parameters = inspect.signature(family.known[name]).parameters.values()
  # An option without a default (avuc's threshold) waits for a number: the dry run of `check` says so if none comes.
  defaults = {p.name: config_dict.placeholder(float) if p.default is p.empty else p.default
              for p in parameters if p.name not in family.hidden}
  defaults |= family.common
  kept = family.common if name != section.get("name", "") else section
  given = {option: value for option, value in section.items() if option in kept and option != "name"}
  for option, value in given.items():
    _one_of(f"{key}: option", option, defaults)
    if isinstance(defaults[option], float) and isinstance(value, int):
      given[option] = float(value)
  section = ConfigDict({"name": name, **defaults, **given}, convert_dict=False)
  parent, _, field = key.rpartition(".")
  (_get(config, parent) if parent else config)[field] = section


def _set(config: ConfigDict, key: str, value: str) -> None:
  """Sets one key from its text, read as the type that the key already has."""
  node, done = config, "the config"
  for part in key.split("."):
    if not isinstance(node, ConfigDict) or part not in node:
      known = list(node) if isinstance(node, ConfigDict) else []
      raise UserError(f"config key {key} does not exist: {done} has {', '.join(known) or 'no keys of its own'}."
                      + _hint(part, known))
    parent, node, done = node, node[part], part
  argument, values = f"--config.{key}={value}", flags.FlagValues()
  config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=["", argument])
  try:
    values(["", argument])
  except (flags.Error, TypeError, ValueError) as error:
    kind = parent.get_type(part).__name__
    raise UserError(f"config key {key} must be of type {kind}: got {value!r}.") from error


def _get(config: ConfigDict, key: str):
  for part in key.split("."):
    config = config[part]
  return config


def _hint(value, known: Iterable[str]) -> str:
  near = difflib.get_close_matches(str(value), known, n=1)
  return f" Did you mean {near[0]!r}?" if near else ""


def _one_of(key: str, value, known: Iterable[str]) -> None:
  if value not in known:
    choices = ", ".join(k or "'' for none" for k in known) or "nothing"
    raise UserError(f"config key {key} must be one of {choices}: got {value!r}." + _hint(value, known))


def _attempt(key: str, build: Callable):
  try:
    return build()
  except (ValueError, TypeError) as error:
    raise UserError(f"config key {key}: {str(error).splitlines()[0]}") from error
