"""The search of Karandikar et al. 2021, Appendix G, for focal loss + soft AvUC on scikit-learn's digits.

Run: python -m experiments.tune_digits [--workdir=experiments/results] [--num_seeds=10]

The focal exponent is tuned first and then the settings of the paper, each on validation splits (experiments/tuning.py).
The trials are kept in `tune_digits.csv`, and those that it already holds are not trained again. The table of all trials
is written beside it (`.md`).
"""

import argparse
import pathlib

from calib_jax import config as run_config
from calib_jax.files import write_text
from experiments import settings, tuning

START = {"loss.primary": {"name": "focal", "gamma": 1.0}, "loss.weight": 1.0,
         "loss.secondary": {"name": "soft_avuc", "threshold": 0.5, "temperature": 1.0},
         "compare_with_cross_entropy": False}
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0)


def page(tuned: tuning.Tuned, num_seeds: int) -> str:
  """Returns the Markdown table of all trials, the chosen settings last."""
  lines = [f"Validation accuracy and ECE (15 equal-mass bins, norm 2), means over {num_seeds} seeds, of every setting "
           "that `python -m experiments.tune_digits` tried, in its order.", "",
           "| setting | accuracy % | ECE % |", "|---|---|---|"]
  lines += [f"| {_text(trial.fields)} | {100 * trial.accuracy:.2f} | {100 * trial.ece:.2f} |" for trial in tuned.trials]
  return "\n".join([*lines, "", f"Chosen: {_text(tuned.chosen)}."]) + "\n"


def _text(fields: dict) -> str:
  return ", ".join(f"{key.removeprefix('loss.').removeprefix('optimizer.')} {value:g}" for key, value in fields.items())


def main(arguments=None) -> None:
  """Tries what has no row yet, and writes and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("experiments/results"))
  parser.add_argument("--num_seeds", type=int, default=10)
  options = parser.parse_args(arguments)
  options.workdir.mkdir(parents=True, exist_ok=True)
  path = options.workdir / "tune_digits.csv"
  config = run_config.load("configs/digits_savuc.py", [])
  config = settings.changed(config, {**START, "num_seeds": options.num_seeds})
  tuned = tuning.one_at_a_time(config, {"loss.primary.gamma": GAMMAS, **tuning.search_space(config)}, path=path)
  text = page(tuned, options.num_seeds)
  write_text(path.with_suffix(".md"), text)
  print(text)


if __name__ == "__main__":
  main()
