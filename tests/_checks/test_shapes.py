"""Arrays of NumPy on the device."""

import numpy as np

from calib_jax import _checks as checks


def test_an_array_on_the_device_shares_no_memory_with_the_callers():
  memory = np.zeros(16 * 4 + 64, np.uint8)
  aligned = memory[-memory.ctypes.data % 64:][:64].view(np.float32)  # As XLA's own memory is.
  kept = checks.on_device(aligned)
  aligned[:] = 7
  np.testing.assert_array_equal(kept, np.zeros(16))
