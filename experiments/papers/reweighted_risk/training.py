"""Which settings of the selective-risk loss train from scratch, and at which accuracy, NLL and ECE.

Run: python -m experiments.papers.reweighted_risk.training --data=IMAGES.npz [--model=mlp] [--workdir=out]

The loss of Zhou et al. 2025 has a confidence score, a smoothing ν, a coverage κ, counts of the scores of the batch
alone or of the whole epoch so far, and weights whose gradient is stopped, or which carry one: as printed, clamped, or
as the released code has them, where the quantile carries one too. Every combination trains a network from
scratch, three seeds side by side, beside cross entropy and AURC. `--data` is an `.npz` file with images and labels of
a training and a test split (see docs/data_and_models.md), such as Fashion-MNIST (`--model=mlp`) or CIFAR-10
(`--model=resnet8`). Each seed draws its own training images; the learning rate falls to 0 by a cosine.

`--starts` compares training from scratch with a warm start (cross entropy in the first quarter of the epochs) and with
a ramp of ν (from ten times ν down to ν over the first half). The results are appended to a `.csv` file, one row for
each setting and seed, and settings that it already holds are skipped; a table of the means is written beside it as
`.md`.
"""

import functools
import itertools
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax import data, losses, metrics, models
from calib_jax._system.files import write_text
from experiments.common import commands, comparison, scales
from experiments.common.rows import append, read

SCORES = ("msp", "margin", "negative_entropy")
SMOOTHINGS, COVERAGES = (0.01, 0.05, 0.1), (0.25, 0.5, 0.9)
STARTS = ("scratch", "warm", "ramp")
WEIGHTS = ("stopped", "printed", "clamped", "released")  # The variants of the loss.
MODELS = {"mlp": {"hidden": (256, 256)}, "resnet8": {}}
MEASURED = ("accuracy", "nll", "ece")


class Setting(NamedTuple):
  """What a run trains with; the fields after ``loss`` are empty for losses other than selective risk."""

  loss: str
  confidence: str = ""
  smoothing: str = ""
  coverage: str = ""
  counts: str = ""
  weights: str = ""
  start: str = ""


class Task(NamedTuple):
  """What all runs share: the data, the network and how it is trained."""

  model: models.Classifier
  images: jax.Array
  labels: jax.Array
  test_images: jax.Array
  test_labels: np.ndarray
  mean: jax.Array
  std: jax.Array
  num_train: int
  num_epochs: int
  batch_size: int
  learning_rate: float
  side_by_side: bool


def settings(starts: list[str], weights: list[str], scores: list[str]) -> list[Setting]:
  """Returns all settings, those that are compared with first."""
  grid = itertools.product(scores, weights, ("epoch", "batch"), SMOOTHINGS, COVERAGES, starts)
  return [Setting("cross_entropy"), Setting("aurc"),
          *(Setting("selective_risk", score, str(smoothing), str(coverage), counts, weights, start)
            for score, weights, counts, smoothing, coverage, start in grid)]


def objective(loss: str, confidence: str, weights: str):
  """Returns ``(logits, labels, smoothing, coverage, counts) -> scalar``."""
  if loss == "selective_risk":
    return lambda z, y, smoothing, coverage, counts: losses.selective_risk(
      z, y, smoothing=smoothing, low_confidence_coverage=coverage, counts=counts, confidence=confidence,
      variant=weights)
  single = losses.composite(loss)
  return lambda z, y, smoothing, coverage, counts: single(z, y)[0]


def trainer(task: Task, loss: str, confidence: str, weights: str):
  """Returns ``(seed, smoothing, coverage, accumulate, warm, ramp) -> test logits``, of which the steps are compiled.

  ``accumulate``, 0 or 1, says whether counts are kept over an epoch. ``warm`` is the fraction of the run that trains
  with cross entropy, and ``ramp`` the factor of ν at the start, which falls to 1 over the first half. An MLP takes an
  array of seeds, which train side by side. For convolutions XLA's CPU code is slow over mapped kernels and inside
  loops, so a network with convolutions trains one seed, and the loop over the steps is Python's.
  """
  loss_fn, steps = objective(loss, confidence, weights), task.num_train // task.batch_size
  optimizer = optax.sgd(optax.cosine_decay_schedule(task.learning_rate, task.num_epochs * steps), momentum=0.9)

  def normalized(images):
    return data.normalize(images, mean=task.mean, std=task.std)

  def start(seed):
    variables = {"batch_stats": {}, **task.model.init(jax.random.key(seed), normalized(task.images[:1]))}
    return variables["params"], variables["batch_stats"], optimizer.init(variables["params"])

  def epoch_order(seed, epoch):
    key = jax.random.key(seed)
    chosen = jax.random.permutation(jax.random.fold_in(key, 1), len(task.labels))[:task.num_train]
    order = jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, 2), epoch), chosen)
    return order[:steps * task.batch_size].reshape(steps, -1)

  def step(state, counts, index, epoch, smoothing, coverage, accumulate, warm, ramp):
    params, stats, opt_state = state
    images, labels = normalized(task.images[index]), task.labels[index]
    done = epoch / task.num_epochs
    sharp = smoothing * ramp ** jnp.maximum(1 - 2 * done, 0)

    def of_params(params):
      logits, updated = task.model.apply({"params": params, "batch_stats": stats}, images, train=True,
                                         mask=jnp.ones(len(labels), bool), mutable=["batch_stats"])
      value = loss_fn(logits, labels, sharp, coverage, accumulate * counts)
      plain = jnp.mean(losses.cross_entropy(logits, labels))
      return jnp.where(done < warm, plain, value), (updated.get("batch_stats", {}), logits)

    gradient, (stats, logits) = jax.grad(of_params, has_aux=True)(params)
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats.
      updates, opt_state = optimizer.update(gradient, opt_state, params)
    if confidence:
      counts = losses.update_selective_risk(losses.SelectiveRiskState(counts), logits, variant=weights,
                                            confidence=confidence).counts
    return (optax.apply_updates(params, updates), stats, opt_state), counts

  def predict(state, images):
    return task.model.apply({"params": state[0], "batch_stats": state[1]}, normalized(images))

  over_seeds = jax.vmap if task.side_by_side else (lambda function, **_: function)
  start, step = jax.jit(over_seeds(start)), jax.jit(over_seeds(step, in_axes=(0, 0, 0) + 6 * (None,)))
  epoch_order = jax.jit(over_seeds(epoch_order, in_axes=(0, None)))
  predict = jax.jit(over_seeds(predict, in_axes=(0, None)))

  def train(seed, smoothing, coverage, accumulate, warm, ramp):
    state, none_seen = start(seed), losses.init_selective_risk().counts
    none_seen = jnp.broadcast_to(none_seen, (*jnp.shape(seed), *none_seen.shape))
    for epoch in range(task.num_epochs):
      order, counts = epoch_order(seed, epoch), none_seen
      for i in range(steps):
        state, counts = step(state, counts, order[..., i, :], epoch, smoothing, coverage, accumulate, warm, ramp)
    return np.concatenate([predict(state, task.test_images[i:i + 1000])
                           for i in range(0, len(task.test_images), 1000)], axis=-2)

  return train


def measured(logits, labels) -> dict[str, float]:
  """Returns accuracy and ECE in percent, and the NLL; the last two are NaN if logits are not finite."""
  if not np.isfinite(logits).all():
    return {"accuracy": 100 * float(np.mean(np.argmax(logits, -1) == labels)), "nll": np.nan, "ece": np.nan}
  probs = jax.nn.softmax(logits)
  return {"accuracy": 100 * float(metrics.accuracy(probs, labels)), "nll": float(metrics.nll(probs, labels)),
          "ece": 100 * float(metrics.expected_calibration_error(probs, labels))}


def load_task(options) -> Task:
  """Returns the data and the network of the command."""
  splits = data.load("npz", path=options.data, seed=0, validation_fraction=0.01)
  test = splits.test.take(np.random.default_rng(0).permutation(len(splits.test.labels))[:options.num_test])

  def shrunk(images):
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // options.shrink, options.shrink, width // options.shrink, options.shrink,
                            channels)
    return jnp.asarray(blocks.mean((2, 4)).round().astype(np.uint8))

  if options.num_train > len(splits.train.labels):
    raise SystemExit(f"--num_train must be at most {len(splits.train.labels):,}: got {options.num_train:,}.")
  model = models.get(options.model, num_classes=splits.num_classes, **MODELS[options.model])
  return Task(model, shrunk(splits.train.images), jnp.asarray(splits.train.labels), shrunk(test.images), test.labels,
              jnp.asarray(splits.mean), jnp.asarray(splits.std), options.num_train, options.num_epochs,
              options.batch_size, options.learning_rate, side_by_side=options.model == "mlp")


def run(setting: Setting, task: Task, seeds: list[int], compiled) -> list[dict]:
  """Trains one setting with all seeds; returns a row for each."""
  warm, ramp = 0.25 if setting.start == "warm" else 0.0, 10.0 if setting.start == "ramp" else 1.0
  train = functools.partial(
    compiled(setting.loss, setting.confidence, setting.weights), smoothing=float(setting.smoothing or 0.05),
    coverage=float(setting.coverage or 0.9), accumulate=float(setting.counts == "epoch"), warm=warm, ramp=ramp)
  logits = train(jnp.asarray(seeds)) if task.side_by_side else [train(seed) for seed in seeds]
  return [{**setting._asdict(), "seed": seed, **{key: f"{value:.5g}" for key, value in
                                                 measured(z, task.test_labels).items()}}
          for seed, z in zip(seeds, logits, strict=True)]


def table(rows: list[dict], network: str) -> str:
  """Returns the page of rows: a table of means over seeds, with the standard error of the mean where there are several.

  NLL and ECE are over the seeds whose logits stayed finite; where not all did, the table says how many did not.
  """
  lines = [f"# Settings of the selective-risk loss of Zhou et al. 2025: {network}", "",
           "± is the standard error of the mean over seeds, on the same test images.", "",
           "| loss | score | smoothing | coverage | counts | weights | start | accuracy % | NLL | ECE % |",
           "|" + "---|" * 10]
  for setting, group in itertools.groupby(sorted(rows, key=_order), key=_order):
    group = list(group)
    cells = list(setting[1:])
    for name, digits in zip(MEASURED, (1, 3, 1), strict=True):
      finite = [row for row in group if name == "accuracy" or row["ece"] != "nan"]
      values, lost = np.array([float(row[name]) for row in finite]), len(group) - len(finite)
      cells.append(comparison.mean_text(values, digits) + (f" ({lost} of {len(group)} diverged)" if lost else ""))
    lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


def _order(row: dict) -> tuple[str, ...]:
  return (str(row["loss"] == "selective_risk"), *(row[name] for name in Setting._fields))


def parse(arguments=None):
  """Returns the options of the command."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--data", required=True, help="an .npz file of images and labels")
  parser.add_argument("--model", choices=list(MODELS), default="mlp")
  parser.add_argument("--starts", nargs="+", choices=STARTS, default=["scratch"])
  parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
  parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
  parser.add_argument("--shrink", type=int, default=1, help="average blocks of so many by so many pixels")
  commands.add_numbers(parser, {"num_train": 4000, "num_test": 10_000, "num_epochs": 20, "num_seeds": 3,
                                "batch_size": 128, "learning_rate": 0.05})
  parser.add_argument("--limit", type=int, help="train at most so many settings, and stop")
  return parser.parse_args(arguments)


def main(arguments=None) -> None:
  """Trains every setting that has no rows yet."""
  options = parse(arguments)
  path = options.workdir / f"selective_risk_{pathlib.Path(options.data).stem}_{options.model}.csv"
  task, seeds = load_task(options), list(range(options.num_seeds))
  done = {tuple(row[name] for name in (*Setting._fields, "seed")) for row in read(path)}
  grid = settings(options.starts, options.weights, options.scores)
  # Seeds that do not train side by side are the outer loop, so that a part of the run holds the whole grid.
  jobs = [(s, seeds) for s in grid] if task.side_by_side else [(s, [seed]) for seed in seeds for s in grid]
  missing = [(s, seeds) for s, seeds in jobs if not all((*s, str(seed)) in done for seed in seeds)][:options.limit]
  compiled = functools.lru_cache(maxsize=None)(functools.partial(trainer, task))
  started = time.monotonic()
  for number, (setting, seeds) in enumerate(missing, 1):
    rows = run(setting, task, seeds, compiled)
    append(path, [row for row in rows if (*setting, str(row["seed"])) not in done])
    means = ", ".join(f"{name} {np.mean([float(row[name]) for row in rows]):.3f}" for name in MEASURED)
    print(f"{number}/{len(missing)} {' '.join(filter(None, setting))}: {means}; "
          f"{commands.left(started, number, len(missing))}", flush=True)
    write_text(path.with_suffix(".md"), table(read(path), scales.named(options.data, options.model)))
  print(f"{path.with_suffix('.md')} holds the table.")


if __name__ == "__main__":
  main()
