"""Overrides on the command line and ``config.json`` give a config of the values that they name, or are refused."""

import ast
import contextlib
import json
import re

from hypothesis import strategies as st
from ml_collections import ConfigDict

from calib_jax import config as run_config
from calib_jax import run
from tests.hostile import files
from tests.hostile.judge import CANARY, attacked, read

PATHS = ("configs/digits_savuc.py", "configs/npz.py", "configs/mac_cal.py:cifar10.resnet50")
CONFIGS = {path: run_config.load(path, []) for path in PATHS}
WORDS = ("", "0", "-1", "1", "0.5", "1e30", "nan", "-inf", "None", "True", "false", "()", "(1,)", "(0.5, 0.2)",
         "(None,)", "{}", "{'name': 'focal'}", "{1: 2}", "((", "1" * 30, "(99999999999,)", "x" * 5000, "(" * 500, "a.b",
         "focal", "__class__", "1e400", "0x10", "\x00", "a=b", "1" * 5000, "\x1b[2J", "\ud800", "a\nb",
         "__import__('os').system('touch canary')", "/dev/zero", "[" * 100_000, "(1, 'a')", "$HOME", "`id`",
         # Import paths of harmless code, which the command line may name, and which is no loss or model.
         "builtins:dict", "math:pi", "json:loads", ":", "a:", ":b", "os:getcwd", "no_such_module:x", "a b:c", "..x:y")


def keys(config: dict, prefix: str = "") -> list[str]:
  """Returns every key of a config, of sections too."""
  return [key for name, child in config.items() for key in (prefix + name, *(
    keys(child, f"{prefix}{name}.") if hasattr(child, "items") else ()))]


@attacked(st.sampled_from(PATHS).flatmap(lambda path: st.tuples(st.just(path), st.sampled_from(
  (*keys(CONFIGS[path]), "x", "evaluation.calibrators.New.name", "")), st.sampled_from(WORDS), st.booleans())), [
  (PATHS[0], *pair, False) for pair in (
    ("training.num_steps", "0.5"), ("num_seeds", "True"), ("num_seeds", "3"), ("x.\x1b[2J", "1"), ("loss", "1"),
    ("loss", "(" * 500), ("loss", "__import__('os').system('touch canary')"), ("loss.primary.name", "no_such_loss"),
    ("model.hidden", "(7,)"), ("model.hidden", "(1, 'a')"), ("model.name", "no_such_module:x"),
    ("evaluation.calibrators.TS.name", "os:getcwd"), ("model.name", "math:pi"), ("num_seeds", "1" * 5000))], number=15)
def test_overrides(_, case):
  path, key, text, is_checked = case

  def load():
    config = run_config.load(path, [f"--config.{key}={text}"])
    if is_checked:
      run_config.check(config, 1)
    return config

  answer = read(load)
  if not answer.refusal and text and not isinstance(value := run_config.get(answer.value, key), ConfigDict):
    before = None if key.startswith("evaluation.calibrators.New") else run_config.get(CONFIGS[path], key)
    assert before is None or type(value) is type(before)
    with contextlib.suppress(ValueError, SyntaxError):  # A text, or names without quotes.
      literal = ast.literal_eval(text)
      assert value in (text, literal, (literal,), text.lower() in ("true", "1")) or list(value) == list(literal)


SOUND = json.loads(run_config.to_json(CONFIGS[PATHS[0]]))
PLACES = (*run_config.SECTIONS, "evaluation.calibrators.TS")
ATTACKS = ("subprocess:getoutput", "os:system", f"{CANARY}:touch", "pickle:loads", f"{CANARY}.sub:x")


def attack(place, **fields):
  config = json.loads(json.dumps(SOUND))
  node = config
  for part in place.split("."):
    node = node[part]
  node.update(fields)
  return json.dumps(config).encode()


@attacked(files.json_texts(SOUND) | st.builds(attack, st.sampled_from(PLACES), name=st.sampled_from(ATTACKS)), [
  *(attack(place, name=ATTACKS[2]) for place in PLACES), attack(PLACES[-1], base=ATTACKS[2]), b"\xff",
  json.dumps(SOUND | {"evaluation": SOUND["evaluation"] | {"calibrators": 1}}).encode(),
  *(json.dumps(SOUND | x).encode() for x in ({"format": 1}, {"loss": 1}, {"num_seeds": 10**40})), files.twice(
    SOUND, "num_seeds", 7)], number=15)
def test_the_config_of_a_run(folder, content):
  (folder / "config.json").write_bytes(content)
  (folder / "predictions").mkdir()
  answer = read(lambda: run.Run.load(folder).config)
  if not answer.refusal:
    members, fields = (json.loads(content.decode(), object_pairs_hook=kind) for kind in (list, dict))
    assert len(dict(members)) == len(members) and fields.pop("format") == SOUND["format"]
    assert not re.search(r'"(name|base)": "[^"]*:', json.dumps(fields))
    for key in keys(fields):
      value, expected = (run_config.get(config, key) for config in (answer.value, ConfigDict(fields)))
      assert hasattr(value, "keys") or json.dumps(value) in (json.dumps(expected), f"{expected}.0"), key
