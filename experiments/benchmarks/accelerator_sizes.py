"""What the accelerator's measurements measure: networks, losses, runs, and how large they are at each scale."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

LOSSES = ("cross_entropy", "focal", "soft_avuc", "soft_binned_ece", "mmce", "avuc", "kde_ece", "aurc", "selective_risk",
          "soft_binned_marginal_ece")
SECONDARY = ("soft_avuc", "soft_binned_ece", "mmce")
RUNS = {  # The network of configs/reweighted_risk.py, and the fields that are set.
  "ResNet-50, cross entropy": ("resnet50", {}),
  "ResNet-50, focal": ("resnet50", {"loss.primary": {"name": "focal", "gamma": 3.0}}),
  "ResNet-50, S-AvUC, interleaved": ("resnet50", {
    "loss.secondary": {"name": "soft_avuc", "threshold": 0.5, "temperature": 0.1},
    "training.schedule": "interleaved", "data.held_out_fraction": 0.1}),
  "ResNet-50, selective risk, released, msp": ("resnet50", {  # As the leaderboard's row, but for κ.
    "loss.primary": {"name": "selective_risk", "low_confidence_coverage": 0.8, "smoothing": 0.1, "variant": "released",
                     "confidence": "msp"}, "training.max_skipped_steps": 10**6}),
}


class Size(NamedTuple):
  """How large the measurements are.

  Attributes:
    model: the fields of the measured network.
    batch_size: its batch.
    networks: the fields of the networks, by name, of which a step is timed at each of ``batch_sizes``.
    batch_sizes: their batches.
    losses: the losses whose share of these steps is measured.
    predictions: the numbers of examples and classes of metrics and fits.
    budget: the seconds of each comparison.
    matrix: the side of the matrices whose product is the ceiling; 0 for the largest that fits.
    secondary: the secondary losses that are measured in a step.
    fields: the fields of all runs.
    runs: the names of the runs.
  """

  model: Mapping[str, object]
  batch_size: int
  budget: float
  matrix: int
  networks: Mapping[str, Mapping[str, object]]
  batch_sizes: Sequence[int]
  losses: Sequence[str]
  predictions: tuple[int, int]
  secondary: Sequence[str]
  fields: Mapping[str, object]
  runs: Sequence[str]


SIZES = {
  "paper": Size({"model.depth": 28, "model.width": 10, "model.dtype": "bfloat16"}, 512, 10.0, 0,
                {"ResNet-50": {"model.name": "resnet50", "model.dtype": "bfloat16"},
                 "WRN-28-10": {"model.name": "wide_resnet28_10", "model.dtype": "bfloat16"}}, (128, 512), LOSSES,
                (50_000, 1000), SECONDARY,
                {"model.dtype": "bfloat16"}, tuple(RUNS)),
  "tiny": Size({"model.name": "simple_cnn", "model.channels": "(4,)", "model.dtype": "float32"}, 16, 0.0, 128,
               {"CNN": {"model.name": "simple_cnn", "model.channels": "(4,)", "model.dtype": "float32"}}, (8, 16),
               LOSSES[:3], (500, 10), SECONDARY[:1],
               {"model": {"name": "simple_cnn", "channels": (4,)}, "training.batch_size": 16, "training.num_epochs": 2},
               tuple(RUNS)[1:2]),
}
