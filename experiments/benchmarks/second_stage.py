"""What methods that change only the classifier cost, as a share of plain training (Ni et al., Table 4).

Run: python -m experiments.benchmarks.second_stage [--model=resnet8] [--budget SECONDS] [--workdir=out]

The engine's steps at a batch of 128 images of 32x32 are timed in pairs with the plain step, in turn; the table has the
median ratio. A second stage of 40 epochs after 350 costs 40 / 350 times the ratio of its step. It uses the network
forwards only: in each step, or with `training.cache_features` once for each image, which costs 1 / 350 times the ratio
of a prediction. BalCAL and MIT-L have no second stage: they cost the additional time of their step. The table is
written to `second_stage_cost_MODEL.md`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import config as run_config
from calib_jax import data
from calib_jax._system.files import write_text
from calib_jax.training import best_model
from calib_jax.training.engine import program
from experiments.benchmarks.training import images, pairs
from experiments.common import commands

HEADS = {"TST": "two_stage", "V-TST": "variational", "MaC-Cal": "masked"}
JOINT = {"BalCAL": ("head.name=simplex_etf",),
         "MIT-L": ("augmentation.name=mixup_inference", "augmentation.padding=0", "augmentation.flip=false")}
EPOCHS, SECOND_EPOCHS, SIZE = 350, 40, 128


def steps(splits: data.Splits, *overrides: str, stage: int = 0):
  """Returns a function that takes one step of a stage of the engine and waits for it, and one that computes features.

  The second is None unless the stage keeps features.
  """
  options = ("loss.primary.name=cross_entropy", "loss.secondary.name=", f"training.batch_size={SIZE}", *overrides)
  config = run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in options])
  built, keys = program.build(config, [splits], [0], jax.devices()[:1]).stages, jax.random.key(0)[None]
  kept = {"state": None}
  for part in built[:stage + 1]:
    kept["state"] = part.start(kept["state"], keys)
  kept["state"] = jax.device_put(kept["state"], jax.devices()[0])
  batch = {"image": splits.train.images[:SIZE][None, None], "label": splits.train.labels[:SIZE][None, None],
           "mask": np.ones((1, 1, SIZE), bool)}
  compute = None
  if built[stage].feature_step is not None:
    on_images, variables = batch, jax.tree.map(jnp.copy, best_model.variables(kept["state"]))
    compute = functools.partial(built[stage].feature_step, variables, on_images)
    batch = batch | {"image": np.asarray(compute()["features"])[None]}

  def take():
    kept["state"], measured = built[stage].train_steps[0](kept["state"], batch, keys)
    jax.block_until_ready((kept["state"], measured))

  take()
  take()
  return take, compute and (lambda: jax.block_until_ready(compute()))


def rows(model: str, budget: float) -> list[tuple[str, float, float]]:
  """Returns ``(method, ratio of its step to the plain one, its cost as a share of plain training)``."""
  network = (f"model.name={model}",)
  splits = images(1000)
  splits = splits._replace(train=splits.train._replace(labels=splits.train.labels % 10), num_classes=10)
  plain, _ = steps(splits, *network)
  found = []
  for name, overrides in JOINT.items():
    ratio, _ = pairs(steps(splits, *network, *overrides)[0], plain, budget)
    found.append((name, ratio, ratio - 1))
  for name, head in HEADS.items():
    second = (*network, f"head.name={head}", "training.schedule=two_stage")
    forward, _ = steps(splits, *second, stage=1)
    ratio, _ = pairs(forward, plain, budget)
    found.append((name, ratio, ratio * SECOND_EPOCHS / EPOCHS))
    cached, compute = steps(splits, *second, "training.cache_features=true", stage=1)
    ratio, _ = pairs(cached, plain, budget)
    once, _ = pairs(compute, plain, budget)
    found.append((f"{name}, cached features", ratio, (ratio * SECOND_EPOCHS + once) / EPOCHS))
  return found


def main() -> None:
  """Measures, prints and writes the table."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--model", default="resnet8")
  parser.add_argument("--budget", type=float, default=10.0, help="seconds for each method")
  options = parser.parse_args()
  lines = [f"{options.model}, 10 classes, batches of {SIZE}, {jax.default_backend()}: the time of a step divided by "
           f"that of a plain step, and the cost of the method as a share of {EPOCHS} plain epochs.", "",
           "| method | step | cost % |", "|---|---|---|"]
  lines += [f"| {name} | {ratio:.3f} | {100 * share:.2f} |"
            for name, ratio, share in rows(options.model, options.budget)]
  text = "\n".join(lines) + "\n"
  write_text(options.workdir / f"second_stage_cost_{options.model}.md", text)
  print(text)


if __name__ == "__main__":
  main()
