"""The search of Karandikar et al. 2021, Appendix G, for the settings of a config, on its validation splits.

Run: python -m experiments.tune --config=configs/fashion_mnist_small_savuc.py [--num_seeds=5] [--config.KEY=VALUE ...]
     [--search KEY=VALUE,VALUE ... [--grid]]

The focal exponent of the primary loss is tuned first, if it has one, and then the settings of the paper
(experiments/common/tuning.py). The search begins with the middle one of each setting's values. The trials are kept in
`tune_NAME.csv`, where NAME is that of the config's file and variant, and those that it already holds are not trained
again. The table of all trials is written beside it (`.md`). `--search` names other fields and values, which are tried
one field after another, or in all combinations with `--grid`.
"""

import argparse
from collections.abc import Sequence
import pathlib
import shlex

from ml_collections import ConfigDict

from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from calib_jax.training import config as run_config
from calib_jax.training.config import overrides
from experiments.common import commands, markdown, settings, tuning

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0)


def _text(fields: dict) -> str:
  return ", ".join(f"{key.removeprefix('loss.').removeprefix('optimizer.')} "
                   f"{f'{value:g}' if isinstance(value, int | float) else value}" for key, value in fields.items())


def searched(config: ConfigDict, texts: Sequence[str]) -> dict[str, tuple[object, ...]]:
  """Returns the values to try by field, of texts such as "optimizer.l2=0,1e-4"; their type is that of the field."""
  space = {}
  for text in texts:
    key, is_pair, values = text.partition("=")
    if not is_pair or not values:
      raise UserError(f"--search: {text!r} must be a field and its values, such as optimizer.l2=0,1e-4.")
    copy, read = config.copy_and_resolve_references(), []
    for value in values.split(","):
      overrides.apply(copy, key, value)
      read.append(run_config.get(copy, key))
    space[key] = tuple(read)
  return space


def _tune(options: argparse.Namespace, changed: Sequence[str]) -> None:
  compilation.keep()
  config = run_config.load(options.config, list(changed))
  num_seeds = options.num_seeds or config.num_seeds
  file, _, variant = options.config.partition(":")
  path = options.workdir / f"tune_{'_'.join(filter(None, (pathlib.Path(file).stem, variant)))}.csv"
  search = searched(config, options.search)
  if options.grid and not search:
    raise UserError("--grid needs the fields and values to combine: --search optimizer.l2=0,1e-4.")
  if not search:
    search = {"loss.primary.gamma": GAMMAS} if "gamma" in config.loss.primary else {}
    search |= tuning.search_space(config.loss.secondary)
  middle = {field: values[len(values) // 2] for field, values in search.items()}
  config = settings.changed(config, {"compare_with_cross_entropy": False, "num_seeds": num_seeds, **middle})
  # It does not go on beyond the ends: for the demo, the exponent 7 that this leads to first ends at a higher error.
  tuned = tuning.tuned(config, search, one_at_a_time=not options.grid, path=path, ladders={})
  command = shlex.join(["python", "-m", "experiments.tune", f"--config={options.config}", f"--num_seeds={num_seeds}",
                        *changed, *(["--search", *options.search] if options.search else []),
                        *(["--grid"] if options.grid else [])])
  page = markdown.filled("tune.md.jinja", config=path.stem.removeprefix("tune_"), command=command, num_seeds=num_seeds,
                         trials=tuned.trials, chosen=tuned.chosen, named=_text)
  write_text(path.with_suffix(".md"), page)
  print(page)


def main(arguments: Sequence[str] | None = None) -> int:
  """Tries what has no row yet, and writes and prints the table; returns the exit code."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--config", required=True, help="a file with get_config(); it is executed")
  parser.add_argument("--num_seeds", type=int, help="those of the config by default")
  parser.add_argument("--search", nargs="+", default=[], metavar="KEY=VALUE,VALUE", help="fields of the config and the "
                      "values to try, in place of those of the paper: optimizer.learning_rate=0.03,0.1,0.3")
  parser.add_argument("--grid", action="store_true", help="tries all combinations of --search")
  options, changed = parser.parse_known_args(arguments)
  try:
    _tune(options, changed)
  except UserError as error:
    print(f"error: {error}")
    return 2
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
