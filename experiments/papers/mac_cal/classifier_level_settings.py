"""The networks, first and second stages that classifier_level.py trains, by name, and their configs."""

from typing import NamedTuple

from calib_jax.training import config as run_config
from configs import mac_cal
from experiments.common.settings import flat
from experiments.papers.mac_cal.tables import OTHERS

# The networks, and whether their seeds train in the same steps.
MODELS = {"mlp": (("model.hidden=(256,256)",), True), "resnet8": (("model.name=resnet8",), False),
          "simple_cnn": (("model.name=simple_cnn", "model.channels=(16,32)"), False)}
MIXUP_ALPHAS, MIT_ALPHAS = (0.2, 1.0, 4.0), (0.2, 1.0)
SHORT = ("mixup 1", "mixup 4")  # Also trained for 10 epochs, after which networks are underconfident.

_MAC = ("head.name=masked", "optimizer.learning_rate=0.01", "training.num_epochs=100")
_PRINTED = ("head.name=masked", "head.variant=printed")
_FIXED = (*_PRINTED, "head.adaptive=false")
_LINEAR = (*_FIXED, "head.bottleneck=false")
# The recipe of Jordahn & Olmos 2024 and of BalCAL's code: Adam, and the model of the lowest validation loss.
_BEST = ("training.select=best", "training.evaluate_every_epochs=1")
_ADAM = ("optimizer.name=adamw", "optimizer.learning_rate=0.0001", "optimizer.clip_norm=1e30",
         "optimizer.coupled_weight_decay=0.0", *_BEST)
_CROPS = ("augmentation.name=crop_flip", "augmentation.padding=4", "augmentation.flip=true")
_RELEASED = (*_CROPS, *_BEST, "schedule.name=two_stage", "schedule.augment=true",
             "schedule.backbone_in_training_mode=true", "stage2.optimizer.name=adamw",
             "stage2.optimizer.learning_rate=0.0001", "stage2.optimizer.schedule=constant",
             "schedule.stage2_batch_size=256")

FIRST = {  # Overrides of the first stage, or of the only one, by name.
  "vanilla": (),
  "PLP": ("schedule.name=layer_peeled",),
  "BalCAL": ("head.name=simplex_etf",),
  "BalCAL, Adam": ("head.name=simplex_etf", *_ADAM),
  "best epoch": _BEST,
  "crops, best epoch": (*_CROPS, *_BEST),
  "TST, released": (*_RELEASED, "head.name=two_stage"),
  "V-TST, released": (*_RELEASED, "head.name=variational"),
  "10 epochs": ("training.num_epochs=10",),
  **{f"mixup {alpha:g}": ("augmentation.name=mixup", f"augmentation.alpha={alpha:g}", "augmentation.padding=0",
                          "augmentation.flip=false") for alpha in MIXUP_ALPHAS},
  **{f"MIT {alpha:g}": ("augmentation.name=mixup_inference", f"augmentation.alpha={alpha:g}",
                        "augmentation.min_difference=0.5", "augmentation.padding=0", "augmentation.flip=false")
     for alpha in MIT_ALPHAS},
}
# The losses of Table 3 as configs/mac_cal.py has them, for a mean over the 128 images of a batch; mixup and MIT are
# those above with α = 1.
LOSSES = {OTHERS[name]: tuple(f"{key}={x / 128 if key == 'loss.weight' else x}" for key, x in flat(fields).items())
          for name, fields in mac_cal.losses("cifar10", "resnet50").items()
          if name in mac_cal.FOLLOWED and not name.startswith("mixup")}
FIRST |= LOSSES
FIRST |= {f"{name}, 10 epochs": (*FIRST[name], "training.num_epochs=10") for name in SHORT}
SECOND = {  # Overrides of the second stage by name, in the order of the tables.
  "MaC-Cal": _MAC,
  "MaC-Cal, stored": (*_MAC, "head.predict=stored", "head.per_epoch=true"),
  "TST": ("head.name=two_stage",),
  "V-TST": ("head.name=variational",),
  "TST, Adam": ("head.name=two_stage", *_ADAM, "training.num_epochs=100", "training.batch_size=256"),
  "V-TST, Adam": ("head.name=variational", *_ADAM, "training.num_epochs=100", "training.batch_size=256"),
  "masked retraining": (*_LINEAR, "head.updates=all"),
  "+ gradient restriction": _LINEAR,
  "+ classifier restructure": _FIXED,
  "+ static adaptive sparsity": (*_PRINTED, "head.decaying=false"),
  "MaC-Cal, printed": _PRINTED,
}
_TRAIN = ("head.measured=train", "head.discount=0.92", "head.keep=0.5")
VARIANTS = {  # What the paper leaves open, one change at a time.
  "MaC-Cal, 40 epochs": (*_MAC, "training.num_epochs=40"),
  "MaC-Cal, rate 0.1": (*_MAC, "optimizer.learning_rate=0.1"),
  "MaC-Cal, no decay": (*_MAC, "optimizer.coupled_weight_decay=0.0"),
  "MaC-Cal, measured on training images, gamma 0.92": (*_MAC, *_TRAIN),
  "MaC-Cal, rescaled": (*_MAC, "head.rescale=true"),
  "MaC-Cal, stored, measured on training images, gamma 0.92": (
    *_MAC, "head.predict=stored", "head.per_epoch=true", *_TRAIN),
  **{f"MaC-Cal, width {width}": (*_MAC, f"head.width={width}") for width in (32, 512)},
  "bottleneck": ("head.name=masked", "head.adaptive=false", "head.keep=1.0", "optimizer.learning_rate=0.01",
                 "training.num_epochs=100"),
  "bottleneck, best epoch": ("head.name=masked", "head.adaptive=false", "head.keep=1.0", "optimizer.learning_rate=0.01",
                             "training.num_epochs=100", *_BEST),
  "printed, rate 0.01, 100 epochs": (*_PRINTED, *_MAC[1:]),
  "printed, 440 epochs": (*_PRINTED, "training.num_epochs=440"),
  "printed, no decay": (*_PRINTED, "optimizer.coupled_weight_decay=0.0"),
  **{f"printed, gamma {gamma:g}": (*_PRINTED, f"head.discount={gamma:g}") for gamma in (0.5, 0.7, 0.9, 1.0)},
  "printed, measured on training images": (*_PRINTED, "head.measured=train"),
  "printed, measured on validation images": (*_PRINTED, "head.measured=validation"),
  "printed, a mask for each epoch": (*_PRINTED, "head.per_epoch=true"),
  **{f"q fixed at {q:g}": (*_FIXED, f"head.keep={q:g}") for q in (0.3, 0.7, 0.9, 1.0)},
  **{f"q fixed at {q:g}, mean": (*_MAC, "head.adaptive=false", f"head.keep={q:g}") for q in (0.1, 0.3, 0.5, 0.7)},
}
HEADS = SECOND | VARIANTS
# The second stages of networks that are not overconfident: MaC-Cal, and what it has without masks or without time.
FEW = ("", "TST", "q fixed at 1", "MaC-Cal", "MaC-Cal, printed")


class Setting(NamedTuple):
  """A first stage, and the head of the second stage; empty if there is none."""

  first: str
  second: str = ""


def settings() -> list[Setting]:
  """Returns all settings, those of the paper's Tables 1, 2 and 5 first."""
  mixed = [name for name in FIRST if name.startswith("mixup") and "epochs" not in name]
  alone = ("PLP", "BalCAL", "BalCAL, Adam", "best epoch", "crops, best epoch", "TST, released", "V-TST, released")
  return [Setting("vanilla"), *(Setting("vanilla", head) for head in HEADS), *map(Setting, alone),
          *(Setting(name, head) for name in FIRST if name.endswith("10 epochs") for head in FEW),
          *(Setting(name, head) for name in mixed for head in ("", "MaC-Cal", "MaC-Cal, printed")),
          *(Setting(name, head) for name in (*LOSSES, "MIT 1", "MIT 0.2") for head in ("", "MaC-Cal"))]


def configured(options, *overrides: str):
  """Returns the config of a stage; ``overrides`` come last."""
  fixed = ("loss.primary.name=cross_entropy", "loss.secondary.name=", f"training.batch_size={options.batch_size}",
           "training.evaluate_every_epochs=100000", f"training.num_epochs={options.num_epochs}",
           f"optimizer.learning_rate={options.learning_rate}", f"optimizer.coupled_weight_decay={options.weight_decay}",
           *([f"schedule.stage2_epochs={options.stage2_epochs}"] if "schedule.name=two_stage" in overrides else []))
  config = run_config.load("configs/digits_savuc.py", [f"--config.{o}" for o in (*fixed, *overrides)])
  run_config.check(config, 1)
  return config


def second_config(options, head: str, *overrides: str):
  """Returns the config of a second stage on features: the rate, epochs and decay of the paper's Section 5.1."""
  return configured(options, "model.hidden=()", f"training.num_epochs={options.stage2_epochs}",
                    "optimizer.learning_rate=0.1", "optimizer.schedule=constant", "optimizer.clip_norm=2.0",
                    "optimizer.coupled_weight_decay=0.0005", *HEADS[head], *overrides)
