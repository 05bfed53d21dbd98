"""The space that experiments/combinations.py searches: every choice of each part of a combination, by its name."""

from collections.abc import Mapping
import functools
import math

from experiments.common import costs, halving, settings, tuning
from experiments.leaderboard import page

_PLAIN, _CROPS = {"padding": 0, "flip": False}, {"padding": 2, "flip": True}
SPACE: halving.Space = {
  "augmentation": {
    "none": {}, "mixup": {"augmentation": {"name": "mixup", "alpha": 0.3, **_PLAIN}},
    "MIT": {"augmentation": {"name": "mixup_inference", "alpha": 1.0, "min_difference": 0.5, **_PLAIN}},
    "CutMix": {"augmentation": {"name": "cutmix", **_PLAIN}},
    "random erasing": {"augmentation": {"name": "random_erasing", **_PLAIN}},
    "crops and flips": {"augmentation": {"name": "crop_flip", **_CROPS}},
    # The names without a strength are those of rows from before the strengths that leaderboards choose were here.
    "RandAugment": {"augmentation": {"name": "randaugment", "magnitude": 3.0, **_PLAIN}},
    "RandAugment, magnitude 9": {"augmentation": {"name": "randaugment", "magnitude": 9.0, **_PLAIN}},
    "RandAugment, crops and flips": {"augmentation": {"name": "randaugment", "magnitude": 3.0, **_CROPS}},
    "AugMix": {"augmentation": {"name": "augmix", "severity": 1.0, **_PLAIN}},
    "AugMix, severity 3": {"augmentation": {"name": "augmix", "severity": 3.0, **_PLAIN}},
    # Without the consistency of three views it takes no longer than a plain run.
    "AugMix, one view": {"augmentation": {"name": "augmix", "severity": 3.0, "consistency": 0.0, **_PLAIN}},
    "AugMix, one view, crops and flips": {
      "augmentation": {"name": "augmix", "severity": 3.0, "consistency": 0.0, **_CROPS}}},
  "loss": {
    "none": {}, "focal, gamma 1": {"loss.primary": {"name": "focal", "gamma": 1.0}},
    "focal, gamma 2": {"loss.primary": {"name": "focal", "gamma": 2.0}},
    "gradient-weighted CE": {"loss.primary": {"name": "brier_weighted_cross_entropy", "gamma": 1.0}},
    "SB-ECE": {"loss.secondary": {"name": "soft_binned_ece", **tuning.SECONDARY["soft_binned_ece"]},
               "loss.weight": 0.3},
    "S-AvUC": {"loss.secondary": {"name": "soft_avuc", **tuning.SECONDARY["soft_avuc"]}, "loss.weight": 0.3},
    "selective risk": {"loss.primary": {"name": "selective_risk", "variant": "stopped",
                                          "confidence": "negative_entropy", "low_confidence_coverage": 0.25}}},
  "weights": {
    "none": {}, "EMA": {"training.average": "ema", "training.average_decay": 0.97},
    "SWA": {"training.average": "swa", "training.average_fraction": 0.5, "optimizer.schedule": "constant"},
    "SAM": {"optimizer.sharpness": 0.1}},
  "decay": {"none": {}, "decay 5e-4": {"optimizer.l2": 5e-4}, "decay 2e-3": {"optimizer.l2": 2e-3},
            "decay 5e-3": {"optimizer.l2": 5e-3}},
  "rate": {"none": {}, "twice the rate": {"optimizer.learning_rate": 0.1},
           "half the rate": {"optimizer.learning_rate": 0.025}},
}
LABEL = "structured matrix"  # The calibrator that ``recommended`` names for 2,000 examples of 10 classes.
MEMBERS = 5
OPTIMIZER = ("decay", "rate")  # The parts that every method of the papers can have too.
WITH = " with "  # Stands between a method of the papers and the choices of these parts.
MOST_LOST = 0.005  # The validation accuracy that a candidate may lose to cross entropy.


def name_of(choice: Mapping[str, str], members: int) -> str:
  """Returns the name of a combination in tables."""
  return halving.text(choice) + (f", ensemble of {members}" if members > 1 else "")


@functools.cache
def choice_of(name: str) -> dict[str, str]:
  """Returns the choice of each part of a combination by its name in tables."""
  return next(x for x in every_choice() if halving.text(x) == name)


def fields_of(name: str) -> dict[str, object]:
  """Returns the flat fields of a combination by its name in tables."""
  return settings.flat(halving.fields(SPACE, choice_of(name)))


def times(choice: Mapping[str, str]) -> float:
  """Returns how often as much as a plain network it takes to train."""
  return costs.training(settings.flat(halving.fields(SPACE, choice)), page.NUM_EPOCHS)


def every_choice() -> list[dict[str, str]]:
  """Returns all combinations, of which cross entropy alone is the first."""
  return halving.draw(SPACE, math.prod(map(len, SPACE.values())))


def one_less(choice: Mapping[str, str]) -> dict[str, dict[str, str]]:
  """Returns the combinations that have one part less, by the name of what they lack; cross entropy alone is none."""
  return {name: {**choice, part: "none"} for part, name in choice.items()
          if name != "none" and any(other != "none" for key, other in choice.items() if key != part)}
