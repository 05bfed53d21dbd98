"""What the commands evaluate and compare: calibrators by text, files of predictions, and directories of runs."""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import os
import pathlib
import re
from typing import Any

import numpy as np

from calib_jax import _checks as checks
from calib_jax import calibrators
from calib_jax._checks.registry import options as registry_options
from calib_jax._system.errors import UserError, short
from calib_jax._system.files import release
from calib_jax.cli.shared import note
from calib_jax.evaluation.predictions import automatic
from calib_jax.evaluation.predictions.fitting import Model, fit
from calib_jax.evaluation.predictions.joining import aligned
from calib_jax.evaluation.predictions.loading import load
from calib_jax.evaluation.predictions.predictions import Predictions, differing
from calib_jax.training.run import manifest

TEST, VALIDATION = "test", "validation"
SEED = re.compile(r"(.+)_seed(\d+)")
CHANCE = 5  # Times the repeats within two sets, and one more, that rows of both may be equal by chance.
MOST_COMPARED = 2**25  # Numbers of the larger of two sets up to which their rows are looked up in each other.
COMPARED = 2**20  # Numbers of two sets that are compared at a time.


def calibrator(text: str) -> calibrators.Calibrator:
  """Returns the calibrator of a text such as ``temperature_scaling:objective=ece,num_bins=10``, or ``auto``."""
  name, _, settings = text.partition(":")
  if name == automatic.AUTO:
    if settings:
      raise UserError(f"the calibrator {automatic.AUTO} has no options: got {short(text)}.")
    return automatic.automatic()
  checks.choice("calibrator name", name, [automatic.AUTO, *calibrators.CALIBRATORS])
  options, values = registry_options(calibrators.CALIBRATORS[name], positional=True), {}
  for pair in filter(None, settings.split(",")):
    option, equals, value = pair.partition("=")
    if option == "base":
      checks.choice("base", value, calibrators.CALIBRATORS)
      options |= registry_options(calibrators.CALIBRATORS[value], positional=True)
    if option not in options or not equals:
      raise UserError(f"{name} has no option {short(option)}; options look like {name}:OPTION=VALUE, and it has "
                      f"{', '.join(options) or 'none'}.{checks.suggestion(option, options)}")
    try:
      values[option] = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
      values[option] = value
  return calibrators.get(name, **values)


def labelled(texts: Sequence[str]) -> dict[str, calibrators.Calibrator]:
  """Returns the calibrators of texts by label."""
  return {text: calibrator(text) for text in texts}


def fresh(path: str, taken: Collection[str]) -> str:
  """Returns a short name for a path that is not taken yet: the file's name, if need be after its folder's."""
  place = pathlib.Path(path.split(",")[0])
  stem = place.stem or path
  names = (stem, f"{place.absolute().parent.name}/{stem}", *(f"{stem} {i}" for i in range(2, 10_000)))
  return next(name for name in names if name not in taken)


def model(path: str, test_set: str, wanted: Mapping[str, calibrators.Calibrator] | None,
          caution: Callable[[str], None] = note, say: Callable[[str], None] = note,
          like: Mapping[str, Predictions] = {}, **reading: Any) -> Model:
  """Returns the model of a file of test predictions, or of a run, with calibrators fitted to its validation split.

  Its test set, which is the first, gets the name ``test_set``. Only a run can be calibrated with those that are
  ``wanted``, by default ``calibrators.recommended``; ``reading`` says how a file is read. ``caution`` is called with a
  sentence for each calibrator that is known to hurt, and ``say`` for each choice between readings of a file. Classes
  are joined by name with those in ``like``, a set by its name, before anything is fitted. A file that cannot be read,
  or a directory without predictions of every seed, of the same size, is a UserError.
  """
  def joined(sets):
    notes: list[str] = []
    parts = {name: part for name, part in aligned({**like, **sets}, notes.append).items() if name not in like}
    for sentence in notes[:1]:  # All files of a run are alike.
      say(sentence)
    return parts

  if not (pathlib.Path(path) / "predictions").is_dir():  # ``load`` says that a directory is no file.
    return Model({test_set: list(joined({fresh(path, like): load(path, say=say, **reading)}).values())}, {})
  files, root = files_of_run(path), manifest.root(pathlib.Path(path))
  used = manifest.names(root, (file for by_seed in files.values() for file in by_seed))
  if doubt := manifest.doubt(root, [*([manifest.CONFIG] if (root / manifest.CONFIG).exists() else []), *used]):
    say(f"warning: {doubt}")
  sets = {name: [load(file, say=say) for file in by_seed] for name, by_seed in files.items()}
  sizes = {len(parts) for parts in sets.values()}
  if TEST not in sets or VALIDATION not in sets or len(sizes) != 1:
    raise UserError(f"{pathlib.Path(path) / 'predictions'} must hold predictions of the validation and the test split, "
                    f"one file a seed, such as test_seed0.npz; it has {', '.join(sorted(sets)) or 'none'}.")
  _check_seeds(files, sets)
  parts = joined({str(file): part for name in sets for file, part in zip(files[name], sets[name], strict=True)})
  sets = {name: [parts[str(file)] for file in files[name]] for name in sets}
  validation = sets.pop(VALIDATION)
  wanted = calibrators.recommended(*validation[0].logits.shape) if wanted is None else wanted
  fitted = fit(validation, wanted, caution)
  return Model({test_set: sets.pop(TEST), **sets}, fitted)


def files_of_run(path: str | os.PathLike[str]) -> dict[str, list[pathlib.Path]]:
  """Returns the files of predictions of a run by set, in the order of the seeds; training examples are left out."""
  files: dict[str, dict[int, pathlib.Path]] = {}
  for file in sorted((pathlib.Path(path) / "predictions").glob("*.npz")):
    match = SEED.fullmatch(file.stem)
    if match and match[1] != "train":
      files.setdefault(match[1], {})[int(match[2])] = file
  return {name: [by_seed[seed] for seed in sorted(by_seed)] for name, by_seed in files.items()}


def _check_seeds(files: Mapping[str, Sequence[pathlib.Path]], sets: Mapping[str, Sequence[Predictions]]) -> None:
  """Raises a UserError unless a run's predictions have the same number of examples in all seeds."""
  for name, parts in sets.items():
    for file, part in zip(files[name], parts, strict=True):
      if name != VALIDATION and len(part.labels) != len(parts[0].labels):
        raise UserError(f"{file} has {len(part.labels):,} examples and {files[name][0].name} {len(parts[0].labels):,}: "
                        f"the predictions of {name} must be of the same number of examples in every seed.")


def check_models(models: Mapping[str, Model], test_set: str, paths: Mapping[str, str | os.PathLike[str]],
                 say: Callable[[str], None] = note) -> None:
  """Raises a UserError unless the test sets of all models have the same classes, and says whose labels differ.

  The first model is the one that the others are compared with; ``paths`` has the directories of those that are runs.
  """
  tests = {name: model.sets[test_set] for name, model in models.items()}
  aligned({name: parts[0] for name, parts in tests.items()})

  def named(name, seed):
    return f"{name} ({files_of_run(paths[name])[TEST][seed].name})" if len(tests[name]) > 1 else name

  first, *others = tests
  for name in others:
    if seeds := differing(*([part.labels for part in tests[model]] for model in (name, first))):
      mine, its = map(named, (name, first), seeds)
      why = (" Runs draw their splits by seed, and share them with the same data.split_seed."
             if name in paths and pathlib.Path(paths[name]).is_dir() else "")
      say(f"warning: the test labels of {mine} are not those of {its}, so their difference has no interval.{why}")
  every_part = {named(name, seed): part for name, parts in tests.items() for seed, part in enumerate(parts)}
  for name, other in same_predictions(every_part):
    say(f"warning: {name} and {other} hold the same test predictions.")


def same_predictions(sets: Mapping[str, Predictions]) -> Iterator[tuple[str, str]]:
  """Yields the names of every two sets that hold the same scores."""
  names = list(sets)
  for i, name in enumerate(names):
    for other in names[:i]:
      if _equal(sets[name].logits, sets[other].logits):
        yield name, other


def shared_rows(part: Predictions, other: Predictions) -> int:
  """Returns how many rows of ``part`` hold scores that a row of ``other`` holds too, and 0 if that may be chance.

  If n and m rows draw one of D scores, rows of one set repeat each other (n² + m²) / 2D times on average. That is at
  least nm / D, the number of equal rows across sets, so that a multiple of those repeats is no chance.
  """
  if max(part.logits.size, other.logits.size) > MOST_COMPARED:
    return 0
  if part.logits.shape[1] != other.logits.shape[1]:
    return 0
  # Rows are compared by random sums of their bits, modulo 2^64: to sort whole rows would take ten times as long.
  factors = np.random.default_rng(0).integers(1, 2**64, part.logits.shape[1], np.uint64)
  rows, others = (np.einsum("nk,k->n", np.ascontiguousarray(x.logits).view(np.uint32), factors, dtype=np.uint64,
                            casting="unsafe") for x in (part, other))
  unique, unique_others = map(np.unique, (rows, others))
  shared = int(np.isin(unique, unique_others, assume_unique=True).sum())
  repeats = len(rows) - len(unique) + len(others) - len(unique_others)
  return shared if shared > CHANCE * (1 + repeats) else 0


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
  if a.shape != b.shape:
    return False
  step = max(COMPARED // a.shape[1], 1)
  are_equal = all(np.array_equal(a[i:i + step], b[i:i + step]) for i in range(0, len(a), step))
  for array in (a, b):
    release(array)
  return are_equal
