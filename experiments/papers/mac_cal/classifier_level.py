"""What a new classifier on frozen features does to an overconfident network (Ni et al., MaC-Cal; Tables 2 and 5).

Run: python -m experiments.papers.mac_cal.classifier_level --data=IMAGES.npz [--model=mlp] [--ood OTHER.npz]

A network trains on few images (`--num_train`) until it knows them by heart and is overconfident. Then each method fits
a new head on its features, which are computed once: TST and V-TST, by the paper's recipe and by that of their authors;
the rows of Table 5 up to MaC-Cal as it is printed; the readings of MaC-Cal in which q counts weights that are dropped;
and other values of what the paper does not print (γ, q, how Conf and Acc are measured, …). PLP, BalCAL, mixup and
MIT-L train networks of their own, and MaC-Cal follows those that were mixed (Figure 6). Each seed has its own images
and weights. Every method is measured as it is and after temperature scaling on validation images, on the test
images, and for telling these from scikit-learn's digits and from the test images of the files `--ood`.

The results are appended to a `.csv` file, one row for each setting, seed and calibration; settings that it already
holds are skipped. A file `_q.csv` holds q after each epoch (Figure 8), and `.md` the table (see
classifier_level_table.py).
"""

import argparse
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics, training
from calib_jax.training import data, models
from experiments.common import commands, rows, scales, studies
from experiments.papers.mac_cal import classifier_level_table
from experiments.papers.mac_cal.classifier_level_settings import (
  FIRST,
  HEADS,
  MODELS,
  configured,
  second_config,
  settings,
)


class Trained(NamedTuple):
  """What a trained network says: one element a seed."""

  predictions: list[dict[str, dict[str, np.ndarray]]]
  keep: list[np.ndarray]  # q after each epoch, [S] each; empty without masks.


def load(options) -> list[data.Splits]:
  """Returns the data of each seed, which all have the same sets of other images."""
  loaded, others = [], {"digits": data.load("digits", seed=0, validation_fraction=0.1).test.images}
  for path in options.ood:
    others[pathlib.Path(path).stem] = data.load("npz", path=path, seed=0, validation_fraction=0.1).test.images[:2000]
  for seed in range(options.num_seeds):
    splits = data.load("npz", path=options.data, seed=seed, validation_fraction=0.05)
    if options.num_train < len(splits.train.labels):  # Drawn by seed and stratified.
      _, kept = data.stratified(splits.train.labels, options.num_train / len(splits.train.labels), seed, salt=9)
      splits = splits._replace(train=splits.train.take(kept))
    alike = {name: data.EvaluationSet(data.Examples(like(images, splits.test.images.shape[1:]),
                                                    np.zeros(len(images), np.int32)), "out_of_distribution")
             for name, images in others.items()}
    chosen = np.random.default_rng(seed).permutation(len(splits.validation.labels))[:options.num_validation]
    loaded.append(splits._replace(validation=splits.validation.take(chosen), others=alike))
  return loaded


def like(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
  """Returns uint8 images in another shape: resized bilinearly, and grey or RGB."""
  if images.shape[-1] != shape[-1]:
    images = images.repeat(3, -1) if shape[-1] == 3 else images.mean(-1, keepdims=True)
  resized = jax.image.resize(jnp.asarray(images, jnp.float32), (len(images), *shape), "bilinear")
  return np.asarray(jnp.clip(jnp.round(resized), 0, 255)).astype(np.uint8)


def train(config, splits: list[data.Splits], together: bool, label: str) -> tuple[object, Trained]:
  """Trains one model a seed; returns their variables, with a leading axis of seeds, and what they say."""
  wanted = ("train", "validation", "test", *splits[0].others)
  seeds, states, predictions, keep = range(len(splits)), [], [], []
  steps = -(-len(splits[0].train.labels) // config.training.batch_size)
  for group in ([list(seeds)] if together else [[seed] for seed in seeds]):
    group_keep = []

    def note(step, measured, group_keep=group_keep):
      if "keep" in measured and step % steps == 1:  # q of the epoch that begins.
        group_keep.append(np.asarray(measured["keep"]))

    state, group_predictions = training.train(config, [splits[i] for i in group], seeds=group,
                                              devices=jax.devices()[:1], label=label, predicted=wanted, hooks=[note])
    if group_keep:
      group_keep.append(np.asarray(state.loss_states["head"].keep))
    states.append({"params": state.params, "batch_stats": state.batch_stats})
    predictions += group_predictions
    keep.append(group_keep)
  variables = jax.tree.map(lambda *x: np.concatenate([np.asarray(part) for part in x]), *states)
  return variables, Trained(predictions, [np.concatenate(parts) for parts in zip(*keep, strict=True)])


def of_features(config, variables, splits: list[data.Splits]) -> list[data.Splits]:
  """Returns splits that hold, in place of images, the features of a trained network."""
  model = models.get(num_classes=splits[0].num_classes, head=config.head, **config.model)

  @jax.jit
  def features(variables, images, mean, std):
    return model.apply(variables, data.normalize(images, mean, std), return_features=True)[1]

  def cached(variables, split, examples):
    parts = [np.asarray(features(variables, examples.images[i:i + 1000], split.mean, split.std))
             for i in range(0, len(examples.labels), 1000)]
    return data.Examples(np.concatenate(parts)[:, None, None], examples.labels)

  feature_splits = []
  for i, split in enumerate(splits):
    own = jax.tree.map(lambda x, i=i: x[i], variables)
    others = {name: data.EvaluationSet(cached(own, split, part.examples), part.kind)
              for name, part in split.others.items()}
    # Features are floats, not grey levels: a mean of 0 and a deviation of 1 leave them as they are.
    parts = (cached(own, split, split.part(name)) for name in ("train", "validation", "test"))
    feature_splits.append(data.Splits(*parts, split.num_classes, np.zeros(1, np.float32),
                                      np.ones(1, np.float32), others))
  return feature_splits


def first_stage(options, splits: list[data.Splits], name: str = "vanilla"
                ) -> tuple[dict, Trained, list[data.Splits]]:
  """Trains a first stage; returns its variables, what it says, and splits that hold its features."""
  network, together = MODELS[options.model]
  config = configured(options, *network, *FIRST[name])
  variables, trained = train(config, splits, together, name)
  return variables, trained, of_features(config, variables, splits)


@jax.jit
def _scores(log_probs, labels):
  probs = jnp.exp(log_probs)
  confidence, _ = metrics.top_label(probs, labels)
  accuracy = metrics.accuracy(probs, labels)
  return {"accuracy": 100 * accuracy, "nll": metrics.nll(probs, labels),
          "ece": 100 * metrics.expected_calibration_error(probs, labels),
          "adaptive_ece": 100 * metrics.adaptive_calibration_error(probs, labels),
          "mce": 100 * metrics.maximum_calibration_error(probs, labels),
          "overconfidence": 100 * (jnp.mean(confidence) - accuracy)}


@jax.jit
def _detection(log_probs, others):
  scores = jnp.concatenate([jnp.max(log_probs, -1), jnp.max(others, -1)])
  positives = jnp.arange(len(scores)) < len(log_probs)
  return 100 * metrics.auroc(scores, positives), 100 * metrics.fpr_at_tpr(scores, positives)


def measured(predictions: dict[str, dict[str, np.ndarray]], others: list[str]) -> dict[str, dict[str, float]]:
  """Returns scores by name, plain and after temperature scaling; detection is averaged over the sets ``others``."""
  scaling, result = calibrators.temperature_scaling(), {}
  test_labels = predictions["test"]["labels"]
  fitted = scaling.fit(predictions["validation"]["logits"], predictions["validation"]["labels"])
  train_probs = jax.nn.softmax(predictions["train"]["logits"])
  shared = {"train_accuracy": 100 * metrics.accuracy(train_probs, predictions["train"]["labels"]),
            "train_confidence": 100 * jnp.mean(jnp.max(train_probs, -1)), "temperature": fitted["temperature"]}
  for name, apply in (("none", jax.nn.log_softmax), ("temperature", lambda z: scaling.apply(fitted, z))):
    test = apply(predictions["test"]["logits"])
    detected = np.mean([_detection(test, apply(predictions[other]["logits"])) for other in others], axis=0)
    result[name] = {**_scores(test, test_labels), "auroc": detected[0], "fpr95": detected[1], **shared}
  return result


def results(trained: Trained, others: list[str]) -> list[rows.Row]:
  """Returns the rows of a setting."""
  return [{"calibrated": calibrated, "seed": seed, **{name: f"{float(value):.5g}" for name, value in scores.items()},
           "q": f"{trained.keep[-1][seed]:.4f}" if trained.keep else ""}
          for seed, predictions in enumerate(trained.predictions)
          for calibrated, scores in measured(predictions, others).items()]


NUMBERS = {"num_train": 4000, "num_validation": 2000, "num_epochs": 80, "stage2_epochs": 40, "num_seeds": 10,
           "batch_size": 128, "learning_rate": 0.05, "weight_decay": 0.0}


def parser(module: str = __spec__.name, text: str = __doc__) -> argparse.ArgumentParser:
  """Returns the parser of the options of this command, or of another one that trains as it does."""
  parser = commands.parser(module, text, results=True)
  parser.add_argument("--data", required=True, help="an .npz file of images and labels")
  parser.add_argument("--ood", nargs="*", default=[], help=".npz files of other images")
  parser.add_argument("--model", choices=list(MODELS), default="mlp")
  commands.add_numbers(parser, NUMBERS)
  parser.add_argument("--only", nargs="*", help="names of first stages; all by default")
  parser.add_argument("--heads", nargs="*", help="names of second stages; all by default")
  parser.add_argument("--limit", type=int, help="train at most so many settings, and stop")
  return parser


def command(options, module: str = "classifier_level") -> str:
  """Returns the command of the table: the files by their names, and the options that are not the defaults."""
  words = [f"--{name}={vars(options)[name]}" for name, default in ({"model": "mlp"} | NUMBERS).items()
           if vars(options)[name] != default]
  ood = ["--ood", *(pathlib.Path(path).name for path in options.ood)] if options.ood else []
  data = f"--data={pathlib.Path(options.data).name}"
  return " ".join([f"python -m experiments.papers.mac_cal.{module}", data, *ood, *words])


def main(arguments=None) -> None:
  """Trains every setting that has no rows yet."""
  options = parser().parse_args(arguments)
  stem = f"classifier_level_{pathlib.Path(options.data).stem}_{options.model}"
  path, q_path = (options.workdir / f"{name}.csv" for name in (stem, f"{stem}_q"))
  done = rows.keys(rows.texts(path), ("first", "second"))
  missing = [s for s in settings() if s not in done and s.first in (options.only or FIRST)
             and (not s.second or s.second in (options.heads or HEADS))][:options.limit]
  splits, cached = load(options), {}

  def trained_and_measured(first: str, second: str) -> list[rows.Row]:
    if first not in cached:  # One first stage is kept at a time.
      cached.clear()
      cached[first] = first_stage(options, splits, first)[1:]
    trained, features = cached[first]
    if second:
      _, trained = train(second_config(options, second), features, True, second)
    if trained.keep and np.ptp(trained.keep) > 0:
      rows.append(q_path, [
        {"first": first, "second": second, "seed": seed, "epoch": epoch, "q": f"{q:.4f}"}
        for epoch, of_seeds in enumerate(trained.keep) for seed, q in enumerate(of_seeds)])
    return results(trained, list(splits[0].others))

  studies.Study(stem, ("first", "second"), missing, trained_and_measured, lambda _: classifier_level_table.page(
    classifier_level_table.read(path), scales.named(options.data, options.model), command(options)),
                options.workdir).publish()
  rows.pack(q_path)


if __name__ == "__main__":
  main()
