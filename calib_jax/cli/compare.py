"""Compares finished runs and files of predictions on one page: calib-jax compare RUN RUN.

Each argument is the directory of a run, or a file of predictions of the same test set. The calibrators are fitted to
each run's validation predictions; files are compared as they are.
"""

import argparse
import pathlib

from calib_jax._system.errors import UserError
from calib_jax._system.files import read_json
from calib_jax.cli import inputs, parsers, shared
from calib_jax.evaluation.predictions.row_ids import SameRows


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = parsers.parser("compare", __doc__, "RUN_OR_FILE RUN_OR_FILE ... [options]")
  parser.add_argument("paths", nargs="+", metavar="RUN_OR_FILE", help="directories of runs, or files of predictions, "
                      "whose rows join by a column id, or else by their order")
  parser.add_argument("--baseline", metavar="NAME", help="the name, as the table has it, of the run or file that the "
                      "others are compared with; by default the first")
  shared.add_options(parsers.groups(parser))
  parser.set_defaults(fail_if=None)
  return shared.run(parser.parse_intermixed_args(arguments), _models)


def _models(options: argparse.Namespace) -> shared.Inputs:
  """Reads the runs and files, the baseline first."""
  if len(options.paths) < 2:
    raise UserError("name at least two runs or files to compare.")
  labelled, models, folders, configs = inputs.labelled(options.calibrators) or None, {}, {}, {}
  cautions: dict[str, list[str]] = {}
  same = SameRows()
  for path in options.paths:
    name = inputs.fresh(str(pathlib.Path(path).resolve()) if pathlib.Path(path).is_dir() else path, models)
    folders[name] = pathlib.Path(path)
    if (folders[name] / "config.json").exists():
      configs[name] = read_json(folders[name] / "config.json")
    like = {other: model.sets[inputs.TEST][0] for other, model in list(models.items())[:1]}
    models[name] = inputs.model(path, inputs.TEST, labelled,
                                lambda text, name=name: cautions.setdefault(text, []).append(name), like=like,
                                same=same, **shared.reading(options))
    # Without --calibrators all runs have the first one's.
    labelled = labelled or {label: fitted for label, (fitted, _) in models[name].fitted.items()} or None
  if options.baseline and options.baseline not in models:
    raise UserError(f"--baseline must be one of {', '.join(models)}: got {options.baseline!r}.")
  names = sorted(models, key=lambda name: name != (options.baseline or next(iter(models))))
  models = {name: models[name] for name in names}
  inputs.check_models(models, inputs.TEST, folders)
  return shared.Inputs(models, {}, [f"{', '.join(of_models)}: {text}" for text, of_models in cautions.items()], configs,
                       {name: folders[name] / "metrics.jsonl" for name in models})
