"""What a method costs to train and to predict, in passes of all examples through the network.

One is a plain run: each epoch takes every training example forward and backward, and a prediction is one pass. What is
counted follows from the config alone, so that other work on a machine does not change it.
"""

from collections.abc import Mapping

FORWARD = 1 / 3  # Of a step that goes forward and backward, which takes about twice as long as going forward.


def training(fields: Mapping[str, object], num_epochs: int, members: int = 1) -> float:
  """Returns how often as much as a plain run training takes.

  Sharpness takes each step twice. ``mixup_inference`` has two views of each image, and ``augmix`` with a consistency
  term three. A second stage, after ``num_epochs`` of the first one, goes forward alone, unless its features are
  computed once. What is saved by layers that are frozen is not counted, nor what evaluations and losses take.

  >>> training({"optimizer.sharpness": 0.1, "augmentation.name": "mixup_inference"}, 20)
  4.0
  >>> round(training({"schedule.name": "two_stage", "schedule.stage2_epochs": 40}, 20, members=5), 2)
  8.33
  """
  views = {"mixup_inference": 2, "augmix": 3 if fields.get("augmentation.consistency", 1) else 1}
  first = views.get(fields.get("augmentation.name"), 1) * (2 if fields.get("optimizer.sharpness") else 1)
  second = 0.0
  if fields.get("schedule.name") == "two_stage" and not fields.get("schedule.cache_features"):
    second = FORWARD * fields["schedule.stage2_epochs"] / num_epochs
  return members * (first + second)


def prediction(fields: Mapping[str, object], members: int = 1) -> float:
  """Returns how often as much as one pass through one network a prediction takes.

  Samples of dropout, which stands before the head, repeat the head alone, and are not counted.

  >>> prediction({"evaluation.samples": 20, "model.name": "resnet110_stochastic_depth"})
  20.0
  >>> prediction({"evaluation.samples": 20, "model.dropout": 0.2}, members=5)
  5.0
  """
  drops_blocks = str(fields.get("model.name")).endswith("stochastic_depth")
  return float(members * (max(fields.get("evaluation.samples", 0), 1) if drops_blocks else 1))


def text(times: float) -> str:
  """Returns a cost for a table.

  >>> text(5.0), text(1 + 2 / 3)
  ('5', '1.7')
  """
  return f"{times:.0f}" if times == round(times) else f"{times:.1f}"
