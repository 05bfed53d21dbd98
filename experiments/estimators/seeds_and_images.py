"""How often intervals and p-values of experiments hold over seeds and images, where both are drawn anew.

Run: python -m experiments.estimators.seeds_and_images   (fifteen minutes on two CPU cores)

Logits of an image have a part that all seeds of all models share (how hard it is), one that the seeds of a model share,
and one of a seed and an image; each seed also has a bias of its own. The truth is the mean over repetitions. "Seeds
alone" is what Student's t of the seeds on the same test images gives.

A second table, of seeds_and_images_p_values.csv, has how often the difference of two equal rows, normal over seeds and
over images, has a p-value below a level: 5%, and 5% over the number of claims of a page or of pairs of methods, which
Holm's and Bonferroni's corrections ask for. In the end both tables of results/coverage.md are written.
"""

import itertools

import numpy as np
import pandas as pd
from scipy import stats

from calib_jax.evaluation.columns import COLUMNS
from experiments.common import commands, comparison, markdown, scores, studies

CLASSES = 5
CASES = {(2000, 3): 300, (2000, 5): 300, (10_000, 10): 100}  # Repetitions by images and seeds.
SCALES = (1.6, 1.3)  # Of the logits of the two models: both are overconfident.
SEEDS, SHARES, REPEATS, BLOCKS = (2, 3, 5, 10), (0.3, 0.7, 1.0, 3.0), 20_000, 20
CORRECTIONS = (1, 11, 100)


def models(rng: np.random.Generator, images: int, seeds: int) -> list[dict[str, comparison.BySeed]]:
  """Returns the values of two models on new images and with new seeds, by column."""
  labels = rng.integers(0, CLASSES, images)
  shared = 1.5 * np.eye(CLASSES)[labels] + rng.normal(size=(images, CLASSES))
  both = []
  for scale in SCALES:
    of_model = shared + 0.5 * rng.normal(size=shared.shape)
    values = {name: comparison.BySeed() for name in scores.BLOCKED}
    left_out = []
    for seed in range(seeds):
      bias = 0.3 * rng.normal() * np.eye(CLASSES)[0]
      logits = np.float32(scale * (of_model + bias + 0.7 * rng.normal(size=shared.shape)))
      of_seed = scores.scored(logits, labels.astype(np.int32))
      left_out.append(scores.without_blocks(logits, labels.astype(np.int32)))
      for name in scores.BLOCKED:
        values[name][str(seed)] = of_seed[name]
    for name, by_seed in values.items():
      by_seed.blocks = comparison.UNIT * np.array(comparison.blocks_text([x[name] for x in left_out]).split(), float)
    both.append(values)
  return both


def coverage(images: int, seeds: int) -> list[dict[str, object]]:
  """Returns the rows of a case: the share of intervals that hold the truth, of a model and of the difference of two."""
  rng, repeats = np.random.default_rng(0), CASES[images, seeds]
  samples = [models(rng, images, seeds) for _ in range(repeats)]
  rows = []
  for name in scores.BLOCKED:
    constant = dict.fromkeys(samples[0][0][name], 0.0)
    for what, pairs in (("one model", [(a[name], constant) for a, _ in samples]),
                        ("difference", [(a[name], b[name]) for a, b in samples])):
      row = {"repeats": repeats, "metric": name, "of": what}
      for kind, intervals in (("both", [comparison.paired(a, b) for a, b in pairs]),
                              ("seeds_alone", [comparison.paired(dict(a), dict(b)) for a, b in pairs])):
        truth = np.mean([x.mean for x in intervals])
        row[kind] = f"{np.mean([x.low <= truth <= x.high for x in intervals]):.4f}"
      rows.append(row)
  return rows


def equal_rows(seeds: int, share: float) -> list[dict[str, object]]:
  """Returns how often p-values of equal rows are below each level, over that level."""
  rng, p_values, welch = np.random.default_rng(0), [], []
  for _ in range(REPEATS):
    of_blocks = share * rng.normal(size=BLOCKS) * (BLOCKS / seeds) ** 0.5
    values = comparison.BySeed({str(i): of_blocks.mean() + rng.normal() for i in range(seeds)})
    values.blocks = -seeds * (of_blocks - of_blocks.mean()) / (BLOCKS - 1)  # What leaving out a block changes.
    zero = dict.fromkeys(values, 0.0)
    difference, (of_images, freedom) = comparison.paired(values, zero), comparison.image_variance(values, zero)
    of_seeds = difference.error**2 - of_images
    welch.append(2 * stats.t.sf(abs(difference.mean) / difference.error, difference.error**4 / (
      of_seeds**2 / (seeds - 1) + of_images**2 / freedom)))
    p_values.append(difference.p_value)
  return [{"repeats": REPEATS, **{f"{name}{number}": f"{np.mean(np.array(ps) < 0.05 / number) * number / 0.05:.3f}"
                                  for name, ps in (("of", p_values), ("welch", welch)) for number in CORRECTIONS}}]


def table_of_p_values(rows: pd.DataFrame) -> str:
  """Returns the Markdown table of ``equal_rows``."""
  headings = ["seeds", "images over seeds", *("below 5%" + f" / {number}" * (number > 1) for number in CORRECTIONS)]
  return markdown.table(headings, [
    (row.seeds, row.share, *(f"{getattr(row, f'of{number}'):.2f} ({getattr(row, f'welch{number}'):.2f})"
                             for number in CORRECTIONS)) for row in rows.itertuples()]) + "\n"


def table(rows: pd.DataFrame) -> str:
  """Returns the Markdown table of the cases that have rows."""
  texts = rows.assign(text=studies.percent(rows.both) + " (" + studies.percent(rows.seeds_alone) + ")").pivot(
    index=["metric", "of"], columns=["images", "seeds"], values="text")
  headings = ["coverage over seeds and images (by seeds alone), in %", "",
              *(f"{images:,} images, {seeds} seeds" for images, seeds in texts)]
  return markdown.table(headings, [
    (COLUMNS[name].heading.replace(" %", "") if what == "one model" else "", what, *texts.loc[name, what])
    for name, what in itertools.product(scores.BLOCKED, ("one model", "difference"))]) + "\n"


STUDIES = (studies.Study("seeds_and_images", ("images", "seeds"), tuple(CASES), coverage, table),
           studies.Study("seeds_and_images_p_values", ("seeds", "share"), tuple(itertools.product(SEEDS, SHARES)),
                         equal_rows, table_of_p_values))

if __name__ == "__main__":
  studies.in_docs(__spec__.name, __doc__, commands.RESULTS / "coverage.md", *STUDIES)
