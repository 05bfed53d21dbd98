"""What methods that change only the classifier cost, as a share of plain training (Ni et al., Table 4).

Run: python -m experiments.benchmarks.second_stage [--model=resnet8] [--budget SECONDS] [--workdir=out]

The engine's steps at a batch of 128 images of 32x32 are timed in pairs with the plain step, in turn; the table has the
median ratio. A second stage of 40 epochs after 350 costs 40 / 350 times the ratio of its step. It uses the network
forwards only: in each step, or with `schedule.cache_features` once for each image, which costs 1 / 350 times the ratio
of a prediction. BalCAL and MIT-L have no second stage: they cost the additional time of their step. The table is
written to `second_stage_cost_MODEL.md`.
"""

import jax

from calib_jax._system.files import write_text
from experiments.common import commands, markdown, timing
from experiments.common.train_step import SIZE, configured, engine, engine_and_features, images

HEADS = {"TST": "two_stage", "V-TST": "variational", "MaC-Cal": "masked"}
JOINT = {"BalCAL": ("head.name=simplex_etf",),
         "MIT-L": ("augmentation.name=mixup_inference", "augmentation.padding=0", "augmentation.flip=false")}
EPOCHS, SECOND_EPOCHS = 350, 40


def rows(model: str, budget: float) -> list[tuple[str, float, float]]:
  """Returns ``(method, ratio of its step to the plain one, its cost as a share of plain training)``."""
  network = (f"model.name={model}",)
  splits = images(1000, num_classes=10)
  plain = engine(configured(*network), splits)
  costs = []

  def to_plain(function):
    return timing.compare(function, plain, budget)["to floor"]

  for name, overrides in JOINT.items():
    ratio = to_plain(engine(configured(*network, *overrides), splits))
    costs.append((name, ratio, ratio - 1))
  for name, head in HEADS.items():
    second = (*network, f"head.name={head}", "schedule.name=two_stage")
    ratio = to_plain(engine(configured(*second), splits, stage=1))
    costs.append((name, ratio, ratio * SECOND_EPOCHS / EPOCHS))
    cached, compute = engine_and_features(configured(*second, "schedule.cache_features=true"), splits, stage=1)
    ratio, once = to_plain(cached), to_plain(compute)
    costs.append((f"{name}, cached features", ratio, (ratio * SECOND_EPOCHS + once) / EPOCHS))
  return costs


def main() -> None:
  """Measures, prints and writes the table."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("--model", default="resnet8")
  parser.add_argument("--budget", type=float, default=10.0, help="seconds for each method")
  options = parser.parse_args()
  measured = rows(options.model, options.budget)
  text = (f"# What a second stage costs\n\n{options.model}, 10 classes, batches of {SIZE}, {jax.default_backend()}: "
          "the time of a step divided by that of a plain step, and the cost of the method as a share of "
          f"{EPOCHS} plain epochs.\n\n" + markdown.table(("method", "step", "cost %"), (
            (name, f"{ratio:.3f}", f"{100 * share:.2f}") for name, ratio, share in measured)) + "\n")
  write_text(options.workdir / f"second_stage_cost_{options.model}.md", text)
  print(text)


if __name__ == "__main__":
  main()
