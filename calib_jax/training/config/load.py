"""Reads a run's config from a file and the command line; ``config.checks`` then refuses what cannot work."""

import collections
from collections.abc import Callable, Mapping
import difflib
import importlib
import importlib.util
import inspect
import json
import pathlib
import re
import shlex
from typing import Any, NamedTuple

import jax
import ml_collections

from calib_jax import calibrators, losses, training
from calib_jax._checks.registry import options as registry_options
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import parse_json
from calib_jax.training import data, models
from calib_jax.training.config import imports, overrides
from calib_jax.training.config.checks import check_fields, check_type, get, one_of
from calib_jax.training.config.imports import import_paths, is_import_path


class Family(NamedTuple):
  """A family says what the ``name`` of a config's section may be, and which options each name has."""

  members: Mapping[str, Callable[..., Any]]  # The functions or classes by name.
  options: Callable[[str], dict[str, object]]  # Maps a name to its options and their defaults.
  common: Mapping[str, object] = {}  # Options that the section has with every name, and their defaults.


def _options_in(registry: Mapping[str, Callable]) -> Callable[[str], dict[str, object]]:
  return lambda name: registry_options(registry[name])


def _loss_options(name: str) -> dict[str, object]:
  """Returns the options of a loss and of its method, without the arrays of the method's state."""
  if name not in training.LOSS_STATES:
    return losses.options(name) if name else {}
  method = training.LOSS_STATES[name]
  state = method(1).init()._asdict()
  return {option: default for option, default in losses.options(name).items() if option not in state
          } | registry_options(method)


CALIBRATORS = "evaluation.calibrators"
# The sections of a config that name a function or class, and what each may name.
SECTIONS = {
  "data": Family(data.SOURCES, data.source_options,
                 {"dir": "~/tensorflow_datasets", "path": "", "validation_fraction": 0.1, "held_out_fraction": 0.1,
                  "split_seed": -1, "corruption": "", "severity": 1}),
  "augmentation": Family(data.AUGMENTATIONS, _options_in(data.AUGMENTATIONS)),
  "model": Family(models.MODELS, _options_in(models.MODELS),
                  {"dtype": "float32", "weights": "", "image_size": 0, "dropout": 0.0, "norm_statistics": "global"}),
  "head": Family(models.HEADS, _options_in(models.HEADS)),
  # Losses that are registered later count too; a ChainMap lists the names of its last mapping first.
  "loss.primary": Family(collections.ChainMap(losses.PER_BATCH, losses.PER_EXAMPLE), _loss_options),
  "loss.secondary": Family(collections.ChainMap(losses.PER_BATCH, {"": None}), _loss_options),
  "schedule": Family(training.SCHEDULES, _options_in(training.SCHEDULES)),
  "stage2.loss": Family(collections.ChainMap(losses.PER_EXAMPLE, {"": None}), _loss_options),
}

FORMAT = 3  # Of ``config.json`` and all else in a run's directory.


def load(path: str, arguments: list[str]) -> ml_collections.ConfigDict:
  """Reads a config from a file and applies overrides from the command line.

  A section that names a function (a loss, a model, …) gets all options of that function, with defaults for those that
  the file does not set. If an override names another function, the section starts from that function's defaults.

  Args:
    path: a Python file that defines ``get_config()``, or ``get_config(argument)`` for what stands after a colon, as in
      ``configs/reweighted_risk.py:cifar100.preresnet56.selective_risk`` (see ``config.cells``).
    arguments: overrides like ``--config.key=value``.

  Returns:
    The config, complete and locked.

  Raises:
    UserError: for a file without ``get_config``, an unknown cell or key, or a value of the wrong type.
  """
  config = _from_file(path)
  pairs = overrides.pairs(arguments, config, [CALIBRATORS])
  _keep_long_tail(path, get(config, "data.name"), dict(pairs).get("data.name"))
  saved = _relabelled(config, pairs)
  complete(config, dict(pairs))
  for key, text in saved:
    overrides.apply(config, key, text)
  return config.lock()


def printed(config: ml_collections.ConfigDict) -> str:
  """Returns every field as the override that gives it back, those that differ from configs/common.py first."""
  common = overrides.fields(complete(importlib.import_module("configs.common").get_config()))
  texts = overrides.fields(config)
  changed = [key for key, text in texts.items() if common.get(key) != text]
  others = [key for key in texts if key not in changed]
  return "\n".join([f"# Other than in configs/common.py: {len(changed)} of {len(texts)} fields.",
                    *(f"--config.{key}={shlex.quote(texts[key])}" for key in changed), "# As there:",
                    *(f"--config.{key}={shlex.quote(texts[key])}" for key in others)])


def complete(config: ml_collections.ConfigDict, named: Mapping[str, str] = {}, *, may_import: bool = True
             ) -> ml_collections.ConfigDict:
  """Adds every option of the functions that the sections name to an unlocked config.

  Names that are import paths, such as ``my_package.losses:mine``, are imported and registered (see ``config.imports``).

  Args:
    config: the config.
    named: texts of overrides by key; names of functions among them replace the config's.
    may_import: whether to import; if not, sections that name what is not registered stay as they are.

  Returns:
    The same config.
  """
  for key, family in SECTIONS.items():
    _complete(config, key, family, named.get(f"{key}.name"), may_import)
  for label in get(config, CALIBRATORS):
    key = f"{CALIBRATORS}.{label}"
    _complete(config, key, Family(calibrators.CALIBRATORS, _calibrator_options(config, key, named)),
              named.get(f"{key}.name"), may_import)
  return config


def _relabelled(config: ml_collections.ConfigDict, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
  """Adds calibrators of ``evaluation.calibrators.LABEL.name=…``, removes ``LABEL=``; returns other overrides."""
  remaining, section = [], get(config, CALIBRATORS)
  for key, text in pairs:
    parent, _, last = key.rpartition(".")
    if parent == CALIBRATORS and not text and last in section:
      del section[last]
    else:
      remaining.append((key, text))
      label = parent.removeprefix(f"{CALIBRATORS}.")
      if last == "name" and parent.startswith(f"{CALIBRATORS}.") and "." not in label and label not in section:
        section[label] = ml_collections.ConfigDict({"name": text})
  return remaining


def _calibrator_options(config: ml_collections.ConfigDict, key: str, named: Mapping[str, str]
                        ) -> Callable[[str], dict[str, object]]:
  """Returns a function from the name of a calibrator to its options; one with a base has the options of its base."""
  def options_of(name):
    options = registry_options(calibrators.CALIBRATORS[name], positional=True)
    base = named.get(f"{key}.base", get(config, key).get("base", options.get("base")))
    if "base" in options and base in calibrators.CALIBRATORS:
      options = registry_options(calibrators.CALIBRATORS[base], positional=True) | options
    return options

  return options_of


def to_json(config: ml_collections.ConfigDict) -> str:
  """Returns the text of a run's ``config.json``."""
  return json.dumps({"format": FORMAT, **config.to_dict()}, indent=2, sort_keys=True) + "\n"


def from_json(text: str, *, own_code: bool | None = False) -> ml_collections.ConfigDict:
  """Returns the config that a run wrote as ``config.json``.

  Args:
    text: the text of the file.
    own_code: whether import paths in it are imported; None to leave sections that name them as they are.

  Raises:
    UserError: if the text is not a config of this format, or names import paths and ``own_code`` is false.
  """
  try:
    fields = parse_json(text, "a config.json")
    if (written := fields.pop("format", None)) != FORMAT:
      raise UserError(f"the run's config.json is of format {short(written)}, and this version of calib_jax reads "
                      f"format {FORMAT}: use the version that wrote it, or train again in another directory.")
    if own_code is False:
      for key, name in import_paths(fields):
        raise UserError(f"{key} is the import path {short(name)}, whose code would be run: if you trust the directory, "
                        "load it with own_code=True.")
    config = complete(ml_collections.ConfigDict(_tuples(fields), convert_dict=True), may_import=bool(own_code)).lock()
    check_fields(config)
    return config
  except (ValueError, KeyError, AttributeError, TypeError) as error:
    raise UserError(f"a config.json cannot be read ({type(error).__name__}: {error}).") from error


def _tuples(value: Any) -> Any:
  """Turns lists into tuples, because JSON has no tuples."""
  if isinstance(value, dict):
    return {key: _tuples(child) for key, child in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def data_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the arguments of ``data.load``: the section ``data`` without what says how a run uses the data."""
  return {key: value for key, value in config.data.items() if key not in ("held_out_fraction", "split_seed")}


def _config_file(path: str) -> pathlib.Path:
  """Returns the file of a config, here or among those installed; the UserError without one says what to do."""
  installed = [pathlib.Path(__file__).parents[2] / path] if path.startswith("configs/") else []
  for file in (pathlib.Path(path), *installed):
    if file.is_file() and file.suffix != ".py":
      raise UserError(f"--config: {path!r} must be a file of Python with get_config(), such as "
                      "configs/digits_savuc.py: got another kind of file.")
    if file.is_file():
      return file
  shared = ("__init__", "common", "recipes")
  files = sorted(str(p) for p in pathlib.Path("configs").glob("*.py") if p.stem not in shared)
  near = difflib.get_close_matches(path, files, n=1)
  advice = (f"did you mean --config={near[0]}?" if near else f"`ls configs` shows {len(files)}." if files else
            "there is no directory configs here: run the command in the one that holds it.")
  raise UserError(f"--config: there is no file {path!r}; {advice}")


def _from_file(argument: str) -> ml_collections.ConfigDict:
  with_colon = re.fullmatch(r"(.*\.py):(.*)", argument)
  path, *after_colon = with_colon.groups() if with_colon else (argument,)
  file = _config_file(path)
  spec = importlib.util.spec_from_file_location("run_config", file)
  module = importlib.util.module_from_spec(spec)
  imports.search_here(str(file.resolve().parent))
  try:
    spec.loader.exec_module(module)
    if after_colon and not inspect.signature(module.get_config).parameters:
      raise UserError(f"it has no cells: leave out {':' + after_colon[0]!r}.")
    config = module.get_config(*after_colon)
  except UserError as error:
    raise UserError(f"--config: {path}: {error}") from error
  except Exception as error:  # The user's own file may raise any exception.
    unknown = re.search(r'Key "(.*?)" does not exist', str(error))
    reason, near = error, ""
    if unknown:
      reason = f"the config has no key {unknown[1]!r} there; configs/common.py lists them"
      near = overrides.elsewhere(importlib.import_module("configs.common").get_config(), unknown[1])
    raise UserError(f"--config: {path} cannot be used ({type(error).__name__}: {reason}).{near}") from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise UserError(f"--config: get_config() of {path} must return a ConfigDict, not {type(config).__name__}.")
  return config.unlock()


def _complete(config: ml_collections.ConfigDict, key: str, family: Family, renamed: str | None,
              may_import: bool) -> None:
  """Adds every option of the function that a section names, or of ``renamed``, with the types of its defaults."""
  section = get(config, key)
  if not isinstance(section, ml_collections.ConfigDict):
    raise UserError(f"config key {key} must be one section with a name and options, such as dict(name='soft_avuc'): "
                    f"got {section!r}.")
  name = section.get("name", "") if renamed is None else renamed
  if not may_import and is_import_path(name) and name not in family.members:
    return
  imports.register(CALIBRATORS if key.startswith(CALIBRATORS) else key, name)
  one_of(f"{key}.name", name, family.members)
  # ``check`` reports an option without a default (avuc's threshold) if the user does not set it.
  defaults = {option: ml_collections.config_dict.placeholder(float) if default is inspect.Parameter.empty else default
              for option, default in family.options(name).items()} | family.common
  valid = family.common if name != section.get("name", "") else section
  options = {option: value for option, value in section.items() if option in valid and option != "name"}
  for option, value in options.items():
    one_of(f"{key}: option", option, defaults, overrides.elsewhere(config, f"{key}.{option}"))
    if type(defaults[option]) in (bool, int, float, str, tuple) and not isinstance(value, jax.Array):
      check_type(f"{key}.{option}", value, type(defaults[option]))
      if isinstance(value, tuple) and len(kinds := {type(x) for x in defaults[option]}) == 1:
        for x in value:
          check_type(f"{key}.{option}, each of its entries,", x, *kinds)
    if isinstance(defaults[option], float) and isinstance(value, int):
      options[option] = float(value)
  section = ml_collections.ConfigDict({"name": name, **defaults, **options}, convert_dict=False)
  parent, _, field = key.rpartition(".")
  (get(config, parent) if parent else config)[field] = section


def _keep_long_tail(path: str, name: str, renamed: str | None) -> None:
  """Raises a UserError if an override replaces the long-tailed data of a config by balanced data."""
  long_tail = data.sources.LONG_TAIL
  balanced = renamed and not renamed.endswith(long_tail) and f"{renamed}{long_tail}" in data.SOURCES
  if balanced and name.endswith(long_tail):
    raise UserError(f"config key data.name: {path} is for long-tailed data, and {renamed!r} is not: use "
                    f"'{renamed}{long_tail}', which is balanced with --config.data.imbalance_ratio=1, or a config of "
                    "balanced data.")
