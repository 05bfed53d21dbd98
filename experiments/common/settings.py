"""Configs of runs that differ in a few fields, and a short name for each."""

from collections.abc import Mapping
import functools
import hashlib
import json
import pathlib

from flax import traverse_util
import jax
from ml_collections import ConfigDict

from calib_jax import config as run_config
from calib_jax.run.directory import EVALUATION_ONLY

# Fields that configs have had only since some results were made: at these values they change nothing.
ADDED = {"stage2.loss": {"name": ""}, "data.split_seed": -1, "training.average": "", "training.average_decay": 0.999,
         "training.average_fraction": 0.25, "model.dropout": 0.0, "model.num_tokens": 0,
         "loss.secondary.variant": "paper", "optimizer.sharpness": 0.0, "stage2.optimizer.sharpness": 0.0}
# What searched fields were called when some results were made.
CALLED = {"schedule.secondary_rate": "training.secondary_rate",
          "schedule.peeling_exponent": "training.peeling_exponent"}
# Names that data had when some results were made.
RENAMED = {"experiments.common.images:few": "experiments.images:few"}
# Options of selective risk, by its variant, when some results were made.
FLAGS = {variant: {"stop_gradient": variant == "stopped", "clamp": variant != "printed", "threshold_gradient": False}
         for variant in ("stopped", "printed", "clamped")}


def changed(config: ConfigDict, fields: Mapping[str, object]) -> ConfigDict:
  """Returns a checked, locked copy of a complete config with some fields or whole sections set, by full name."""
  copy = config.copy_and_resolve_references().unlock()
  copy.update_from_flattened_dict(fields)
  run_config.complete(copy)
  run_config.check(copy.lock(), jax.device_count())
  return copy


# Takes fields, and returns them by full name, those of sections too: "loss.primary.name" of "loss.primary".
flat = functools.partial(traverse_util.flatten_dict, sep=".")


def digest(config: ConfigDict) -> str:
  """Returns twelve hexadecimal digits that configs share only if they train the same models on the same data.

  They also predict with as many samples. Paths count without their folders, and fields that are newer than results do
  not count at the values that results had.
  """
  fields = {key: value for key, value in config.to_dict().items() if key not in EVALUATION_ONLY}
  for key, value in ADDED.items():
    *sections, last = key.split(".")
    section = functools.reduce(dict.__getitem__, sections, fields)
    if last in section and section[last] == value:  # Some fields are options of one model.
      del section[last]
  _schedule_as_it_was(fields)
  loss = fields["loss"]["primary"]
  if loss["name"] == "selective_risk" and loss.get("variant") in FLAGS:
    loss |= FLAGS[loss.pop("variant")]
  if samples := config.evaluation.samples:
    fields["evaluation.samples"] = samples
  fields["data"] |= {key: pathlib.PurePath(fields["data"][key]).name for key in ("dir", "path")}
  fields["data"]["name"] = RENAMED.get(fields["data"]["name"], fields["data"]["name"])
  return hashed(fields)


def _schedule_as_it_was(fields: dict[str, dict]) -> None:
  """Puts the options of a schedule where they stood when some results were made; it had those of all others too."""
  own = fields.pop("schedule")
  name = own["name"]
  fields["training"] |= {
    "schedule": name, "secondary_rate": own.get("secondary_rate", 1.0), "stage2_epochs": own.get("stage2_epochs", 40),
    "freeze_batch_stats_in_secondary": name == "interleaved" and own["freeze_batch_stats"],
    "peeling_exponent": own.get("peeling_exponent", 1.0),
    "peeling_freezes_batch_stats": name != "layer_peeled" or own["freeze_batch_stats"],
    **{key: own[key] for key in ("cache_features", "stage2_batch_size") if own.get(key)}}
  fields["stage1"] = {key: own.get(key, "") for key in ("workdir", "weights")}
  fields["stage2"] |= {key: True for key in ("augment", "backbone_in_training_mode") if own.get(key)}


def hashed(value: object) -> str:
  """Returns twelve hexadecimal digits of the SHA-256 of a value that JSON can hold."""
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
