"""Configs of runs that differ in a few fields, and a short name for each."""

from collections.abc import Mapping
import functools
import hashlib
import json
import pathlib

from flax import traverse_util
import jax
from ml_collections import ConfigDict

from calib_jax.training import config as run_config
from calib_jax.training.run.directory import EVALUATION_ONLY


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

  They also predict with as many samples. Paths count without their folders. A new field of configs is
  left out here at the value that changes nothing, because committed rows were hashed without it.
  """
  fields = {key: value for key, value in config.to_dict().items() if key not in EVALUATION_ONLY}
  fields["evaluation.samples"] = config.evaluation.samples
  fields["data"] |= {key: pathlib.PurePath(fields["data"][key]).name for key in ("dir", "path")}
  if fields["model"].get("norm_statistics") == "global":
    del fields["model"]["norm_statistics"]
  if fields["augmentation"].get("magnitude") == 0 and fields["augmentation"]["name"] != "randaugment":
    del fields["augmentation"]["magnitude"]  # Of what mixes images.
  return hashed(fields)


def hashed(value: object) -> str:
  """Returns twelve hexadecimal digits of the SHA-256 of a value that JSON can hold."""
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
