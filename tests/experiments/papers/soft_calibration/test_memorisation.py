"""The experiment on memorisation: its images."""

import numpy as np
import pytest

from experiments.common import sweep
from experiments.papers.soft_calibration import memorisation

EXPERIMENT = memorisation.EXPERIMENT


def test_images_are_drawn_by_the_seed_and_validated_on_as_many_for_any_number(tmp_path):
  pixels, labels = np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2
  np.savez(tmp_path / "images.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
  options = sweep.parse(EXPERIMENT, [f"--images={tmp_path}/images.npz", "--num_examples=2000", "--num_epochs=3"])
  configs = [method.config() for method in EXPERIMENT.methods(options)]
  assert len({str(config) for config in configs}) == 5 and {config.training.num_epochs for config in configs} == {3}
  data = configs[0].data
  assert data.num_examples * (1 - data.validation_fraction) == pytest.approx(2000)
