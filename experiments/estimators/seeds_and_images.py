"""How often intervals of experiments hold the mean over seeds and images, where both are drawn anew.

Run: python -m experiments.estimators.seeds_and_images   (5 minutes; it prints a Markdown table)

Logits of an image have a part that all seeds of all models share (how hard it is), one that the seeds of a model share,
and one of a seed and an image; each seed also has a bias of its own. The truth is the mean over repetitions. "Over
seeds alone" is what Student's t of the seeds on the same test images gives.
"""

import numpy as np

from experiments.common import commands, comparison, scores

CLASSES = 5
CASES = ((2000, 3, 300), (2000, 5, 300), (10_000, 10, 100))  # Images, seeds and repetitions.
SCALES = (1.6, 1.3)  # Of the logits of the two models: both are overconfident.


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


def main(arguments: list[str] | None = None) -> None:
  """Prints the table."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  print("| coverage, in % | images, seeds | over seeds and images | over seeds alone |\n|---|---|---|---|")
  for images, seeds, repeats in CASES:
    rng = np.random.default_rng(0)
    samples = [models(rng, images, seeds) for _ in range(repeats)]
    for name in scores.BLOCKED:
      constant = dict.fromkeys(samples[0][0][name], 0.0)
      for what, pairs in ((name, [(a[name], constant) for a, _ in samples]),
                          (f"{name}, difference of two models", [(a[name], b[name]) for a, b in samples])):
        shares = []
        for intervals in ([comparison.paired(a, b) for a, b in pairs],
                          [comparison.paired(dict(a), dict(b)) for a, b in pairs]):
          truth = np.mean([x.mean for x in intervals])
          shares.append(f"{100 * np.mean([x.low <= truth <= x.high for x in intervals]):.1f}")
        print(f"| {what} | {images:,}, {seeds} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
  main()
