"""The losses of each paper, with the values that it prints for a data set and a network.

Each function returns the losses by name: a dict of the config's sections and fields that differ from cross entropy.
"""

from collections.abc import Callable, Mapping
import math

from ml_collections import ConfigDict

Fields = dict[str, object]  # By their full names, such as "loss.primary"; a section is a dict.


def apply(config: ConfigDict, fields: Mapping[str, object]) -> None:
  """Sets ``fields`` in ``config``."""
  for key, value in fields.items():
    *parents, last = key.split(".")
    section = config
    for parent in parents:
      section = section[parent]
    section[last] = value


def _primary(name: str, **options) -> Fields:
  return {"loss.primary": dict(name=name, **options)}


def _secondary(name: str, weight: float, **options) -> Fields:
  return {"loss.secondary": dict(name=name, **options), "loss.weight": weight}


# Zhou et al. 2025: γ of the dual and inverse focal losses (Table 2), κ (Table 3), ν (Appendix E.2), and the score.
# Score: margin is the best on CIFAR-100 but for PreResNet-56, and with ViT-S; negative entropy with Swin-T (Section 5).
# For the others it is not printed: negative entropy, the default of the released code.
_ENTROPY = "negative_entropy"
_RR = {  # (data, model): (γ of dual focal, γ of inverse focal, κ, ν, score)
  ("cifar10", "resnet50"): (5.0, 2.0, 0.9, 0.1, _ENTROPY),
  ("cifar10", "resnet110"): (4.5, 3.0, 0.9, 0.1, _ENTROPY),
  ("cifar10", "wide_resnet28_10"): (2.6, 1.5, 0.8, 0.1, _ENTROPY),
  ("cifar10", "preresnet56"): (4.0, 2.0, 0.8, 0.1, _ENTROPY),
  ("cifar100", "resnet50"): (5.0, 1.0, 0.9, 0.01, "margin"),
  ("cifar100", "resnet110"): (6.1, 1.5, 0.8, 0.01, "margin"),
  ("cifar100", "wide_resnet28_10"): (3.9, 1.0, 0.8, 0.1, "margin"),
  ("cifar100", "preresnet56"): (4.5, 1.0, 0.9, 0.01, _ENTROPY),
  ("tiny_imagenet", "vit_small"): (1.0, 1.0, 0.2, 0.05, "margin"),
  ("tiny_imagenet", "swin_tiny"): (1.0, 1.0, 0.4, 0.1, _ENTROPY),
}
_KDE_WEIGHT = {"cifar10": 0.3, "cifar100": 0.5}  # Appendix E.1.


def reweighted_risk(data: str, model: str) -> dict[str, Fields]:
  """The losses of Zhou et al. 2025, Figure 3 and Tables 1 to 4."""
  dual, inverse, coverage, smoothing, score = _RR[data, model]
  return {
    "sample_dependent_focal": _primary("sample_dependent_focal", thresholds=(0.2,), gammas=(5.0, 3.0)),  # FL-53.
    "inverse_focal": _primary("inverse_focal", gamma=inverse),
    "dual_focal": _primary("dual_focal", gamma=dual, competitor="strongest_below"),  # As the released code has it.
    # KDE-XE. The canonical form is that of the released code. Not printed: the bandwidth, ours; for Tiny ImageNet the
    # weight, which the released code leaves at 0.5.
    "kde_ece": _secondary("kde_ece", _KDE_WEIGHT.get(data, 0.5), form="canonical", norm=1.0, bandwidth=0.1),
    "aurc": _primary("aurc", confidence=_ENTROPY),  # Not printed: the released code's default score.
    # Algorithm 1 has gradients through the weights, which is stop_gradient=False; the default, ours, has none. See
    # docs/losses.md for what the gradients do to training from scratch.
    "selective_risk": _primary("selective_risk", low_confidence_coverage=coverage, smoothing=smoothing,
                               confidence=score),
  }


def focal_temperature(data: str, model: str) -> dict[str, Fields]:
  """The losses of Komisarenko & Kull 2024, Section 5.1 and Table 1."""
  del data, model
  return {
    **{f"focal_{gamma}": _primary("focal", gamma=float(gamma)) for gamma in (1, 2, 3, 5, 7)},
    "sample_dependent_focal": _primary("sample_dependent_focal", thresholds=(0.2,), gammas=(5.0, 3.0)),  # FLSD-53.
    "adaptive_focal": _primary("adaptive_focal"),  # AdaFocal with its default parameters (Table 1).
  }


# Not printed: γ of Tao et al. 2023, whose values Zhou et al. 2025 repeat in Table 2 and in their code.
_TAO = {("cifar10", "resnet50"): 5.0, ("cifar10", "resnet110"): 4.5, ("cifar10", "wide_resnet26_10"): 2.6,
        ("cifar10", "densenet121"): 5.0, ("cifar100", "resnet50"): 5.0, ("cifar100", "resnet110"): 6.1,
        ("cifar100", "wide_resnet26_10"): 3.9, ("cifar100", "densenet121"): 3.4, ("tiny_imagenet", "resnet50"): 2.3}


def _second_stage(name: str, **options) -> Fields:
  """Ni et al., Section 5.1: 40 epochs of a new head at a rate of 0.1; no decay, and no change of the rate, is printed.

  The sum of the loss and the clipping are those of the first stage, which is our reading.
  """
  return {"head": dict(name=name, **options), "training.schedule": "two_stage", "training.stage2_epochs": 40,
          "stage2.optimizer.learning_rate": 0.1, "stage2.optimizer.schedule": "constant",
          "stage2.optimizer.clip_norm": 2.0}


def mac_cal(data: str, model: str) -> dict[str, Fields]:
  """The losses and heads of Ni et al., Tables 1 and 3.

  The paper prints no value of a loss: they are of its code unless said otherwise.
  """
  batch_size = 128
  return {
    "adaptive_conditional_label_smoothing": _primary("adaptive_conditional_label_smoothing"),  # ACLS; values ours.
    "label_smoothing": _primary("cross_entropy", label_smoothing=0.05),
    "margin_label_smoothing": _primary("margin_label_smoothing", margin=6.0, weight=0.1),  # MbLS.
    "mixup": {"augmentation": dict(name="mixup", alpha=1.0, larger_share=True, padding=4, flip=True)},  # α: ours.
    "mixup_inference": {  # MIT-L.
      "augmentation": dict(name="mixup_inference", alpha=0.5, min_difference=0.5, padding=4, flip=True)},
    "focal": _primary("focal", gamma=3.0),
    "sample_dependent_focal": _primary("sample_dependent_focal", thresholds=(0.2,), gammas=(5.0, 3.0)),  # FLSD.
    "dual_focal": _primary("dual_focal", gamma=_TAO[data, model], competitor="strongest_below"),  # DFL; γ ours.
    "pairwise_constraints": _primary("pairwise_constraints", discrimination_weight=0.1, exclusion_weight=1.0),  # CPC.
    # Weighted, λ = 2. The code multiplies the mean of cross entropy plus λ·MMCE by the batch size.
    "mmce": _secondary("mmce", 2.0 * batch_size, weighted=True),
    "two_stage": _second_stage("two_stage"),  # TST.
    "variational": _second_stage("variational"),  # V-TST.
    "masked": _second_stage("masked"),  # MaC-Cal; width and γ are ours.
    "simplex_etf": {"head": dict(name="simplex_etf")},  # BalCAL; the first λ is ours.
  }


def soft_calibration(data: str, model: str) -> dict[str, Fields]:
  """The losses of Karandikar et al. 2021, Table 2, named ``PRIMARY`` or ``PRIMARY+SECONDARY``.

  The paper prints 15 bins and Eq. 12 for SB-ECE. It tunes κ, T and the weight β for every cell and does not print them:
  γ of the focal loss, κ, T, p and β are ours, starting points for that search. With cross entropy on CIFAR, S-AvUC and
  SB-ECE train interleaved (Appendix B).
  """
  del model
  num_classes = {"cifar10": 10, "cifar100": 100, "imagenet2012": 1000}[data]
  imagenet = data == "imagenet2012"
  primaries = {"cross_entropy": _primary("cross_entropy")}
  if not imagenet:  # On ImageNet the paper has cross entropy alone.
    primaries |= {"focal": _primary("focal", gamma=1.0), "brier": _primary("brier")}
  half = 0.5 * math.log(num_classes)
  secondaries = {
    "mmce": _secondary("mmce", 1.0),
    "avuc": _secondary("avuc", 1.0, threshold=half),
    "avuc_gs": _secondary("avuc", 1.0, threshold=half, stop_gradient=True),
    "soft_avuc": _secondary("soft_avuc", 1.0, threshold=0.5, temperature=1.0),
    "soft_binned_ece": _secondary("soft_binned_ece", 1.0, num_bins=15, form="label", temperature=0.01, norm=2.0),
  }
  interleaved = {"training.schedule": "interleaved", "data.held_out_fraction": 0.1}  # The fraction is ours.
  cells = dict(primaries)
  for first, primary in primaries.items():
    for second, secondary in secondaries.items():
      overfits = first == "cross_entropy" and second.startswith("soft_") and not imagenet
      cells[f"{first}+{second}"] = primary | secondary | (interleaved if overfits else {})
  return cells


PAPERS: dict[str, Callable[[str, str], dict[str, Fields]]] = {
  "soft_calibration": soft_calibration, "reweighted_risk": reweighted_risk, "focal_temperature": focal_temperature,
  "mac_cal": mac_cal}
