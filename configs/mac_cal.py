"""Ni et al., MaC-Cal: nine networks of Tables 1 and 3, whose methods are losses, augmentations and heads.

Run: python main.py --config=configs/mac_cal.py:cifar10.resnet50.masked --workdir=runs/cell
Values:
  cifar10, cifar100: sgd, rate 0.1, 350 epochs, batch 128, coupled weight decay 0.0005
  tiny_imagenet: sgd, rate 0.1, 100 epochs, batch 128, coupled weight decay 0.0005

The text after the colon is DATA.NETWORK.METHOD; without a method it trains cross entropy, and a wrong one lists what
there is.
"""

from calib_jax.training.config import cells
from configs.recipes import mukhoti, primary, secondary

# γ of the dual focal loss. Not printed: that of Tao et al. 2023, whose values Zhou et al. 2025 repeat in Table 2 and in
# their code.
NETWORKS = {
  "cifar10": {"resnet50": 5.0, "resnet110": 4.5, "wide_resnet26_10": 2.6, "densenet121": 5.0},
  "cifar100": {"resnet50": 5.0, "resnet110": 6.1, "wide_resnet26_10": 3.9, "densenet121": 3.4},
  "tiny_imagenet": {"resnet50": 2.3},
}


# Table 3: MaC-Cal after other losses and augmentations of the first stage. The second stage has cross entropy, as in
# Algorithm 1.
FOLLOWED = ("adaptive_conditional_label_smoothing", "label_smoothing", "margin_label_smoothing", "mixup",
            "mixup_inference", "focal", "sample_dependent_focal", "dual_focal", "pairwise_constraints", "mmce")


def recipe(data: str, model: str):
  """The settings of Section 5.1, for methods of one stage, with the one seed that it names."""
  return mukhoti(data, model, tiny_batch_size=128, seed=1)


def losses(data: str, model: str):
  """The losses, augmentations and heads of Tables 1 and 3.

  The paper prints no value of a loss: they are of its code unless said otherwise. "BalCAL's code" is that released with
  Ni et al. 2025, of the same authors.
  """
  table = {
    "cross_entropy": {},
    "adaptive_conditional_label_smoothing": primary("adaptive_conditional_label_smoothing"),  # ACLS; BalCAL's code.
    "label_smoothing": primary("cross_entropy", label_smoothing=0.05),
    "margin_label_smoothing": primary("margin_label_smoothing", margin=6.0, weight=0.1),  # MbLS.
    "mixup": {"augmentation": dict(name="mixup", alpha=1.0, larger_share=True, padding=4, flip=True)},  # α: ours.
    "mixup_inference": {  # MIT-L.
      "augmentation": dict(name="mixup_inference", alpha=0.5, min_difference=0.5, padding=4, flip=True)},
    "focal": primary("focal", gamma=3.0),
    "sample_dependent_focal": primary("sample_dependent_focal", thresholds=(0.2,), gammas=(5.0, 3.0)),  # FLSD.
    "dual_focal": primary("dual_focal", gamma=NETWORKS[data][model], competitor="strongest_below"),  # DFL; γ ours.
    "pairwise_constraints": primary("pairwise_constraints", discrimination_weight=0.1, exclusion_weight=1.0),  # CPC.
    # Weighted, λ = 2, as the code normalises it, which multiplies the mean of cross entropy plus λ·MMCE by the batch
    # size, 128.
    "mmce": secondary("mmce", 2.0 * 128, weighted=True, variant="released"),
    "layer_peeled": {"schedule.name": "layer_peeled"},  # PLP.
    "two_stage": _second_stage("two_stage"),  # TST.
    "variational": _second_stage("variational"),  # V-TST.
    # The recipe of Jordahn & Olmos 2024 and of their code, of which the paper prints nothing.
    "two_stage_released": _released("two_stage"),
    "variational_released": _released("variational"),
    # MaC-Cal in the reading that lowers ECE, and as it is printed; experiments/results/new_heads.md compares them.
    # The width and γ are ours.
    "masked": _second_stage("masked") | {"schedule.stage2_epochs": 100, "stage2.optimizer.learning_rate": 0.01},
    "masked_printed": _second_stage("masked", variant="printed"),
    "simplex_etf": {"head": dict(name="simplex_etf")},  # BalCAL; the first λ is ours.
    # The recipe of BalCAL's code but for its 600 epochs in batches of 256: Adam at a constant rate, without decay, and
    # the model of the lowest validation loss. There that is the sum of both heads' cross entropies, unweighted and of
    # augmented images, and training images are never shuffled; here λ weighs it, validation images are as they are, and
    # training shuffles.
    "simplex_etf_released": {
      "head": dict(name="simplex_etf"), "optimizer.name": "adamw", "optimizer.learning_rate": 1e-4,
      "optimizer.schedule": "constant", "optimizer.coupled_weight_decay": 0.0, "optimizer.clip_norm": None,
      "training.select": "best", "training.evaluate_every_epochs": 1},
  }
  return table | {f"{name}_masked": table[name] | table["masked"] | {"stage2.loss": dict(name="cross_entropy")}
                  for name in FOLLOWED}


def _second_stage(head: str, **options) -> dict[str, object]:
  """Section 5.1: 40 epochs of a new head at a rate of 0.1, with a decay of 5e-4; no change of the rate is printed.

  The decay is printed after the sentence on both stages. The clipping is that of the first stage, and the loss a mean
  over the batch, where the first stage has its sum; both are our readings.
  """
  return {"head": dict(name=head, **options), "schedule.name": "two_stage", "schedule.stage2_epochs": 40,
          "schedule.cache_features": True, "stage2.optimizer.learning_rate": 0.1,
          "stage2.optimizer.schedule": "constant", "stage2.optimizer.clip_norm": 2.0,
          "stage2.optimizer.coupled_weight_decay": 5e-4, "stage2.optimizer.decay_norms_and_biases": True}


def _released(head: str) -> dict[str, object]:
  """Adam at 1e-4 on crops and flips, in batches of 256, with the backbone in training mode.

  The model of the lowest validation loss predicts. The code never shuffles, and augments validation images too; here
  training shuffles, and they are as they are.
  """
  return {"head": dict(name=head), "schedule.name": "two_stage", "schedule.stage2_epochs": 40,
          "stage2.optimizer.name": "adamw", "stage2.optimizer.learning_rate": 1e-4,
          "stage2.optimizer.schedule": "constant", "schedule.augment": True, "schedule.backbone_in_training_mode": True,
          "schedule.stage2_batch_size": 256, "training.select": "best", "training.evaluate_every_epochs": 1}


get_config = cells(NETWORKS, recipe, losses)
