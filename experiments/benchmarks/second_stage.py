"""What methods of the classifier cost, as a share of plain training (Ni et al., Table 4).

Run: python -m experiments.benchmarks.second_stage [--model=resnet8] [--budget SECONDS] [--workdir=out]

The engine's steps at a batch of 128 images of 32x32 are timed in pairs with the plain step, in turn; the table has the
median ratio. A second stage of 40 epochs after 350 costs 40 / 350 times the ratio of its step, whose network is used
forwards only, once with the images of each step and once on features that were computed before. BalCAL and MIT-L have
no second stage: they cost what their step takes more. Writes `second_stage_cost_MODEL.md`.
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import config as run_config
from calib_jax import data, models
from calib_jax.files import write_text
from calib_jax.training import program
from experiments.benchmarks.training import images, pairs

HEADS = {"TST": "two_stage", "V-TST": "variational", "MaC-Cal": "masked"}
JOINT = {"BalCAL": ("head.name=simplex_etf",),
         "MIT-L": ("augmentation.name=mixup_inference", "augmentation.padding=0", "augmentation.flip=false")}
EPOCHS, SECOND_EPOCHS, SIZE = 350, 40, 128


def step(splits: data.Splits, *overrides: str, stage: int = 0):
  """Returns a function of nothing that takes one step of a stage of the engine and waits for it."""
  options = ("loss.primary.name=cross_entropy", "loss.secondary.name=", f"training.batch_size={SIZE}", *overrides)
  config = run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in options])
  built, keys = program.build(config, [splits], [0], jax.devices()[:1]).stages, jax.random.key(0)[None]
  kept = {"state": None}
  for part in built[:stage + 1]:
    kept["state"] = part.start(kept["state"], keys)
  kept["state"] = jax.device_put(kept["state"], jax.devices()[0])
  batch = {"image": splits.train.images[:SIZE][None, None], "label": splits.train.labels[:SIZE][None, None],
           "mask": np.ones((1, 1, SIZE), bool)}

  def take():
    kept["state"], measured = built[stage].train_steps[0](kept["state"], batch, keys)
    jax.block_until_ready((kept["state"], measured))

  take()
  take()
  return take


def rows(model: str, budget: float) -> list[tuple[str, float, float]]:
  """Returns ``(method, ratio of its step to the plain one, its cost as a share of plain training)``."""
  network = (f"model.name={model}",)
  splits = images(1000)
  splits = splits._replace(train=splits.train._replace(labels=splits.train.labels % 10), num_classes=10)
  shape = jax.eval_shape(lambda key: models.get(model, num_classes=10).init_with_output(
    key, jnp.zeros((1, 32, 32, 3)), return_features=True)[0][1], jax.random.key(0)).shape
  features = splits.train._replace(
    images=np.random.default_rng(0).normal(size=(1000, 1, 1, shape[-1])).astype(np.float32))
  cached = splits._replace(train=features, mean=np.zeros(1, np.float32), std=np.full(1, 1 / 255, np.float32))
  plain, found = step(splits, *network), []
  for name, overrides in JOINT.items():
    ratio, _ = pairs(step(splits, *network, *overrides), plain, budget)
    found.append((name, ratio, ratio - 1))
  for name, head in HEADS.items():
    forward = step(splits, *network, f"head.name={head}", "training.schedule=two_stage", stage=1)
    on_features = step(cached, "model.hidden=()", f"head.name={head}")
    for label, function in ((name, forward), (f"{name}, cached features", on_features)):
      ratio, _ = pairs(function, plain, budget)
      found.append((label, ratio, ratio * SECOND_EPOCHS / EPOCHS))
  return found


def main() -> None:
  """Measures, prints and writes the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--model", default="resnet8")
  parser.add_argument("--budget", type=float, default=10.0, help="seconds for each method")
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("experiments/results"))
  options = parser.parse_args()
  lines = [f"{options.model}, 10 classes, batches of {SIZE}, {jax.default_backend()}: the time of a step divided by "
           f"that of a plain step, and the cost of the method as a share of {EPOCHS} plain epochs.", "",
           "| method | step | cost % |", "|---|---|---|"]
  lines += [f"| {name} | {ratio:.3f} | {100 * share:.1f} |"
            for name, ratio, share in rows(options.model, options.budget)]
  text = "\n".join(lines) + "\n"
  options.workdir.mkdir(parents=True, exist_ok=True)
  write_text(options.workdir / f"second_stage_cost_{options.model}.md", text)
  print(text)


if __name__ == "__main__":
  main()
