"""Mutated overrides on the command line, and mutated ``config.json`` of run directories."""

import ast
import contextlib
import json
import pathlib
import random
import re
from typing import Any

from ml_collections import ConfigDict

from calib_jax import calibrators, run
from calib_jax import config as run_config
from calib_jax._system.errors import UserError
from calib_jax.config.load import FORMAT
from tests.adversary import mutations
from tests.adversary.judge import CANARY, Kind

PATHS = ("configs/digits_savuc.py", "configs/cifar100_savuc.py", "configs/fashion_mnist_small_savuc.py",
         "configs/npz.py", "configs/mac_cal.py:cifar10.resnet50", "configs/mac_cal.py:tiny_imagenet.resnet50")
# Import paths of a user's own code that are harmless: the command line may name them, and must say what is wrong.
OWN = ("builtins:dict", "math:pi", "json:loads", ":", "a:", ":b", "os:getcwd", "builtins:object", "builtins:int",
       "collections:OrderedDict", "no_such_module:x", "jax.numpy:zeros", "a b:c", "1:2", "..x:y", "calib_jax:losses")
ATTACKS = ("subprocess:getoutput", "os:system", f"{CANARY}:touch", "builtins:exec", "builtins:eval", "os:popen",
           "subprocess:run", "runpy:run_path", "webbrowser:open", "pickle:loads", f"{CANARY}.sub:x")


def keys(config: ConfigDict, prefix: str = "") -> list[str]:
  """Returns every key of a config, of sections too."""
  found = []
  for name in config:
    found.append(prefix + name)
    if isinstance(config[name], ConfigDict):
      found += keys(config[name], f"{prefix}{name}.")
  return found


def _names(key: str) -> tuple[str, ...]:
  family = run_config.SECTIONS.get(key.removesuffix(".name"))
  known = family.members if family else ("temperature_scaling", "classwise_loss_scaling", "meta_calibration")
  return (*known, *OWN)


def _prepare(folder: pathlib.Path) -> dict[str, list[str]]:
  new = ["x", "training.x", "evaluation.calibrators.New.name", "evaluation.calibrators.a.b.name", ""]
  return {path: [*keys(run_config.load(path, [])), *new] for path in PATHS}


def _overrides(draw: random.Random, sound: dict, folder: pathlib.Path) -> tuple[str, list[str], bool]:
  path = draw.choice(list(sound))
  arguments = []
  for _ in range(draw.randint(1, 3)):
    key = draw.choice(sound[path])
    value = draw.choice(_names(key)) if key.endswith(".name") and draw.random() < 0.7 else draw.choice(mutations.WORDS)
    arguments.append(f"--config.{key}={value}" if draw.random() > 0.02 else draw.choice(("--x", "y", "--config.", key)))
  return path, arguments, draw.random() < 0.2


def _load(case: tuple[str, list[str], bool]) -> ConfigDict:
  path, arguments, checked = case
  config = run_config.load(path, arguments)
  if checked:  # It takes five times as long.
    run_config.check(config, 1)
  return config


def _silent_override(sound: Any, case: Any, config: ConfigDict, said: str) -> str:
  """Returns which override of one key does not have the value that it names, or ""."""
  last = {match[1]: match[2] for text in case[1] if (match := re.fullmatch(r"--config\.([^=]+)=(.*)", text, re.DOTALL))}
  for key, text in last.items():
    try:
      value = run_config.get(config, key)
    except (UserError, KeyError, AttributeError, TypeError):
      continue  # A calibrator that was removed.
    if isinstance(value, ConfigDict) or any(key.startswith(f"{other}.") for other in last if other != key):
      continue
    readings = [text, text.lower()]
    for reader in (ast.literal_eval, float, lambda text: int(text, 0)):
      with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        readings.append(reader(text))
    readings += [(), None] if text in ("", "None", "none") else []
    readings += [bool(int(text))] if text in ("0", "1") else [text.lower() == "true"] if text.lower() in (
      "true", "false") else []
    if value not in readings and value not in [(reading,) for reading in readings] and not isinstance(
        value, tuple | float) and list(value if isinstance(value, list) else [value]) not in readings:
      return f"--config.{key}={text[:100]} became {value!r:.100}"
  return ""


def _prepare_json(folder: pathlib.Path) -> list[dict]:
  return [json.loads(run_config.to_json(run_config.load(path, []))) for path in PATHS]


def _json(draw: random.Random, sound: list[dict], folder: pathlib.Path) -> pathlib.Path:
  config = draw.choice(sound)
  if draw.random() < 0.25:
    config = json.loads(json.dumps(config))
    attack = draw.choice(ATTACKS)
    options = draw.choice(({}, {"cmd": "touch canary"}, {"command": "touch canary"}, {"base": attack}))
    section = draw.choice((*run_config.SECTIONS, "evaluation.calibrators.TS", "evaluation.calibrators.TS"))
    *parents, last = section.split(".")
    node = config
    for parent in parents:
      node = node[parent]
    node[last] = {"name": attack, **options} if draw.random() < 0.5 else {**node.get(last, {}), "name": attack}
    content = json.dumps(config).encode()
  else:
    content = mutations.json_text(draw, config)
  (folder / "config.json").write_bytes(content)
  (folder / "predictions").mkdir()
  mutations.in_place_of(draw, folder / "config.json", is_small=True)
  return folder


def _load_json(folder: pathlib.Path) -> ConfigDict:
  config = run.Run.load(folder).config
  for section in config.evaluation.calibrators.values():
    try:
      calibrators.get(**section)
    except (ValueError, TypeError) as error:  # ``Run.calibrators`` would say it.
      raise UserError(" ".join(str(error).split())) from error
  return config


def _silent_json(sound: Any, folder: pathlib.Path, config: ConfigDict, said: str) -> str:
  """Returns which value of the file is another in the accepted config, or ""."""
  twice = []

  def pairs(members):
    names = [name for name, _ in members]
    twice.extend(name for name in names if names.count(name) > 1)
    return dict(members)

  content = json.loads((folder / "config.json").read_text(encoding="utf-8-sig"), object_pairs_hook=pairs)
  if content.pop("format") != FORMAT:
    return "another format was taken"
  if twice:
    return "" if said.strip() else f"the key {twice[0][:50]!r} stands twice"
  for key in (*run_config.SECTIONS, *(f"{run_config.CALIBRATORS}.{label}" for label in config.evaluation.calibrators)):
    if ":" in str(run_config.get(config, f"{key}.name")):
      return f"the import path {run_config.get(config, f'{key}.name')!r} of {key} was taken"
  return _differs(content, config, "")


def _differs(node: Any, config: Any, key: str) -> str:
  if isinstance(node, dict):
    if not hasattr(config, "keys"):
      return f"{key} is no section"
    return next(filter(None, (f"{key}.{name} is left out" if name not in config else _differs(
      child, config[name], f"{key}.{name}") for name, child in node.items())), "")
  plain = json.loads(json.dumps(config))
  same = node == plain or (node != node and plain != plain)  # Two NaN.
  return "" if same else f"{key} is {node!r:.60} in the file and {config!r:.60} in the config"


KINDS = {"overrides": Kind(_prepare, _overrides, _load, _silent_override),
         "config.json": Kind(_prepare_json, _json, _load_json, _silent_json)}
