"""Every training method of the leaderboard: the fields that it sets, and the three strengths that are tried first.

All methods have the same budget: three values of the one setting that matters most, chosen on the validation split,
and further ones while the best is the first or the last (experiments/common/tuning.py). Plain cross entropy has none,
and selective risk has two settings, κ and ν, which are tuned one after the other.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.common import scales, tuning


class Recipe(NamedTuple):
  """A training method."""

  fields: Mapping[str, object]  # The fields of a config that it sets.
  search: Mapping[str, Sequence] = {}  # The values of one of them that are tried first.
  members: int = 1  # How many networks vote.
  at_paper_scale: Mapping[str, object] = {}  # The fields that it also sets at that scale.

  def at(self, scale: str) -> dict[str, object]:
    """Returns the fields that it sets at a scale."""
    return scales.scaled({**self.fields, **(self.at_paper_scale if scale == "paper" else {})}, scales.SCALED[scale])


def _primary(name: str, key: str, values: Sequence, **options) -> Recipe:
  return Recipe({"loss.primary": {"name": name, **options}}, {f"loss.primary.{key}": values})


def _secondary(name: str, weights: Sequence[float], primary: Mapping[str, object] | None = None,
               **options) -> Recipe:
  return Recipe({"loss.primary": primary or {"name": "cross_entropy"}, "loss.secondary": {"name": name, **options}},
                {"loss.weight": weights})


def _interleaved(recipe: Recipe) -> Recipe:
  """The same losses, with the secondary loss on held-out examples only; the rate of its steps is what is tried."""
  return Recipe({**recipe.fields, "schedule.name": "interleaved", "data.held_out_fraction": 0.1},
                {"schedule.secondary_rate": tuning.RATES})


def _new_head(name: str, key: str, values: Sequence, num_epochs: int, optimizer: Mapping[str, object],
              fields: Mapping[str, object] = {}, **options) -> Recipe:
  """A new classifier on frozen features."""
  return Recipe({"head": {"name": name, **options}, "schedule.name": "two_stage",
                 "schedule.stage2_epochs": num_epochs, "stage2.optimizer.schedule": "constant",
                 **{f"stage2.optimizer.{field}": value for field, value in optimizer.items()}, **fields},
                {key: values})


def _released(name: str) -> Recipe:
  """TST and V-TST as their authors train them: Adam, training mode, the lowest validation loss of both stages."""
  recipe = _new_head(name, "stage2.optimizer.learning_rate", (3e-5, 1e-4, 3e-4), 40, {"name": "adamw"},
                     {"schedule.backbone_in_training_mode": True, "training.select": "best",
                      "training.evaluate_every_epochs": 1})
  return recipe._replace(at_paper_scale={"schedule.augment": True, "schedule.stage2_batch_size": 256,
                                         "training.select_after_epochs": 0})


def _of_ni(name: str, key: str, values: Sequence, num_epochs: int, optimizer: Mapping[str, object] = {}, **options
           ) -> Recipe:
  """A second stage as Section 5.1 of Ni et al. has it, on features that are computed once; the last step predicts."""
  recipe = _new_head(name, key, values, num_epochs, {"clip_norm": 2.0, "coupled_weight_decay": 5e-4, **optimizer},
                     {"schedule.cache_features": True}, **options)
  return recipe._replace(at_paper_scale={"training.select": "last"})


def _selective(**options) -> Recipe:
  """Selective risk, of which κ is tuned, then ν."""
  return Recipe({"loss.primary": {"name": "selective_risk", "low_confidence_coverage": 0.5, "smoothing": 0.1,
                                  **options}},
                {"loss.primary.low_confidence_coverage": (0.25, 0.5, 0.9), "loss.primary.smoothing": (0.05, 0.1, 0.2)})


def _as_released(**options) -> Recipe:
  """Selective risk as released: steps that are not finite are left out, as its half precision does."""
  recipe = _selective(variant="released", **options)
  return recipe._replace(fields={**recipe.fields, "training.max_skipped_steps": 10**6})


_AVUC, _BINNED = tuning.SECONDARY["soft_avuc"], tuning.SECONDARY["soft_binned_ece"]
_FOCAL = {"name": "focal", "gamma": 1.0}
_WEIGHTED = {"name": "brier_weighted_cross_entropy", "gamma": 1.0}
_STRONGER = tuning.WEIGHTS[:3]
_RATES = (0.01, 0.03, 0.1)

METHODS: dict[str, Recipe] = {
  "cross entropy": Recipe({}),
  "weight decay": Recipe({}, {"optimizer.l2": (1e-4, 5e-4, 2e-3)}),
  "label smoothing": _primary("cross_entropy", "label_smoothing", (0.02, 0.05, 0.1)),
  "Brier": Recipe({"loss.primary": {"name": "brier"}}, {"optimizer.learning_rate": (0.05, 0.1, 0.2)}),
  "focal": _primary("focal", "gamma", (1.0, 2.0, 3.0)),
  "focal, gamma 1": Recipe({"loss.primary": _FOCAL}),  # What a secondary loss is added to below.
  "FLSD": _primary("sample_dependent_focal", "gammas", ((3.0, 2.0), (5.0, 3.0), (7.0, 5.0)), thresholds=(0.2,)),
  "inverse focal": _primary("inverse_focal", "gamma", (0.5, 1.0, 2.0)),
  "dual focal": _primary("dual_focal", "gamma", (1.0, 3.0, 5.0)),
  "AdaFocal": _primary("adaptive_focal", "rate", (0.3, 1.0, 3.0)),
  "properized focal": _primary("properized_focal", "gamma", (0.5, 1.0, 2.0)),
  "gradient-weighted CE": _primary("brier_weighted_cross_entropy", "gamma", (0.5, 1.0, 2.0)),
  "MbLS": _primary("margin_label_smoothing", "margin", (3.0, 6.0, 10.0), weight=0.1),
  "ACLS": _primary("adaptive_conditional_label_smoothing", "margin", (3.0, 6.0, 10.0), weight=0.1),
  "CALS": _primary("class_adaptive_label_smoothing", "margin", (3.0, 6.0, 10.0)),
  "CPC": _primary("pairwise_constraints", "discrimination_weight", _STRONGER, exclusion_weight=1.0),
  "MMCE": _secondary("mmce", (1.0, 3.0, 10.0)),
  "AvUC": _secondary("avuc", _STRONGER, threshold=1.15),  # Half of log 10, the largest entropy.
  "S-AvUC": _secondary("soft_avuc", _STRONGER, **_AVUC),
  "SB-ECE": _secondary("soft_binned_ece", _STRONGER, **_BINNED),
  "MDCA": _secondary("mdca", (1.0, 3.0, 10.0)),
  "GenCE": Recipe({"loss.primary": {"name": "generative_cross_entropy"}},
                {"optimizer.learning_rate": (0.025, 0.05, 0.1)}),
  "KDE-XE": _secondary("kde_ece", _STRONGER, form="canonical"),
  "AURC": _primary("aurc", "confidence", ("msp", "margin", "negative_entropy")),
  "selective risk": _selective(variant="stopped", confidence="negative_entropy"),
  "selective risk, released, msp": _as_released(confidence="msp"),
  "selective risk, released, msp, counts of the batch": _as_released(confidence="msp", accumulate_counts=False),
  "selective risk, released, margin": _as_released(confidence="margin"),
  "mixup": Recipe({"augmentation": {"name": "mixup", "padding": 0, "flip": False}},
                  {"augmentation.alpha": (0.1, 0.3, 1.0)}),
  "MIT": Recipe({"augmentation": {"name": "mixup_inference", "padding": 0, "flip": False, "min_difference": 0.5}},
                {"augmentation.alpha": (0.3, 0.5, 1.0)}),
  "focal + S-AvUC": _secondary("soft_avuc", _STRONGER, _FOCAL, **_AVUC),
  "focal + SB-ECE": _secondary("soft_binned_ece", _STRONGER, _FOCAL, **_BINNED),
  "S-AvUC, interleaved": _interleaved(_secondary("soft_avuc", (), **_AVUC)),
  "SB-ECE, interleaved": _interleaved(_secondary("soft_binned_ece", (), **_BINNED)),
  "TST": _released("two_stage"),
  "V-TST": _released("variational"),
  "TST, as Ni et al.": _of_ni("two_stage", "stage2.optimizer.learning_rate", _RATES, 40),
  "V-TST, as Ni et al.": _of_ni("variational", "stage2.optimizer.learning_rate", _RATES, 40),
  "MaC-Cal": _of_ni("masked", "stage2.optimizer.learning_rate", (0.003, 0.01, 0.03), 100),
  "MaC-Cal, printed": _of_ni("masked", "head.discount", (0.5, 0.9, 1.0), 40, {"learning_rate": 0.1},
                             variant="printed"),
  "PLP": Recipe({"schedule.name": "layer_peeled"}, {"schedule.peeling_exponent": (0.5, 1.0, 2.0)}),
}

# Beyond the papers: averages of the weights, flat minima, random layers, heads that share a body, augmentations, a
# posterior of the last layer, and combinations that none of them tried.
COMBINED: dict[str, Recipe] = {
  "EMA": Recipe({"training.average": "ema"}, {"training.average_decay": (0.9, 0.97, 0.99)}),
  "SWA": Recipe({"training.average": "swa", "optimizer.schedule": "constant"},
                {"training.average_fraction": (0.25, 0.5, 0.75)}),
  "SAM": Recipe({}, {"optimizer.sharpness": (0.05, 0.1, 0.2)}),
  "dropout": Recipe({}, {"model.dropout": (0.1, 0.2, 0.5)}),
  "MC dropout": Recipe({"model.dropout": 0.2, "evaluation.samples": 20}, {"model.dropout": (0.1, 0.2, 0.5)}),
  "shared body": Recipe({"head": {"name": "shared_body"}}, {"head.members": (3, 5, 10)}),
  "RandAugment": Recipe({"augmentation": {"name": "randaugment", "padding": 0, "flip": False}},
                        {"augmentation.magnitude": (3.0, 6.0, 9.0)}),
  "AugMix": Recipe({"augmentation": {"name": "augmix", "padding": 0, "flip": False}},
                   {"augmentation.severity": (1.0, 2.0, 3.0)}),
  "CutMix": Recipe({"augmentation": {"name": "cutmix", "padding": 0, "flip": False}},
                   {"augmentation.alpha": (0.3, 0.5, 1.0)}),
  "random erasing": Recipe({"augmentation": {"name": "random_erasing", "padding": 0, "flip": False}},
                           {"augmentation.largest": (0.1, 0.2, 0.33)}),
  "Laplace": Recipe({"evaluation.laplace": "auto"}),  # Of the last layer of cross entropy.
  "gradient-weighted CE + S-AvUC": _secondary("soft_avuc", _STRONGER, _WEIGHTED, **_AVUC),
  "gradient-weighted CE + S-AvUC, interleaved": _interleaved(_secondary("soft_avuc", (), _WEIGHTED, **_AVUC)),
  "focal + S-AvUC, interleaved": _interleaved(_secondary("soft_avuc", (), _FOCAL, **_AVUC)),
}
# The mean of five networks, with the setting of one; it costs five times as much.
for _name in ("cross entropy", "focal", "MIT", "RandAugment"):
  COMBINED[f"{_name}, ensemble of 5"] = {**METHODS, **COMBINED}[_name]._replace(members=5)
for _name in ("cross entropy", "gradient-weighted CE + S-AvUC", "focal + S-AvUC"):
  _recipe = {**METHODS, **COMBINED}[_name]
  COMBINED[f"{_name}, refined"] = _recipe._replace(
    fields={**_recipe.fields, "training.select": "refined", "training.evaluate_every_epochs": 2})
