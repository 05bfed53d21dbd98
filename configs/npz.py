"""Your own images in a .npz file, a small CNN, cross entropy; one seed.

Run: python main.py --config=configs/npz.py --workdir=runs/mine --config.data.path=my_images.npz
Values: sgd, rate 0.1, 20 epochs, batch 64, coupled weight decay 0.0005.

The file holds ``images`` (uint8 [N, H, W, C] or [N, H, W]) and ``labels`` (integers from 0), or both for training and
test; see docs/data_and_models.md. All values are ours. The 1,797 digits of scikit-learn, enlarged to 24x24, took two
minutes on two busy CPU cores and gave 98% test accuracy.
"""

from configs import common


def get_config():
  """A first run; docs/losses.md says which loss to try next, and docs/calibrators.md which calibrator."""
  config = common.get_config()
  config.data = dict(name="npz", path="", dir="", validation_fraction=0.1)
  config.augmentation = dict(name="crop_flip", padding=2, flip=False)  # A mirrored digit is another one.
  config.model = dict(name="simple_cnn", channels=(32, 64, 128), dtype="float32")
  config.optimizer.coupled_weight_decay = 5e-4
  config.training.update(batch_size=64, num_epochs=20, evaluate_every_epochs=1)
  config.training.select = "best"  # The epoch of the lowest validation loss.
  return config
