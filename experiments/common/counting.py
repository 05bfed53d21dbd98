"""Operations of programs, as XLA counts them."""

from collections.abc import Callable

import jax

from calib_jax._system.errors import UserError


def counted(analysis: object) -> dict[str, float]:
  """Returns what XLA counted in a program, such as ``flops`` and ``bytes accessed``; without those that it did not.

  JAX says that what ``cost_analysis()`` returns may differ between versions and devices: older versions return a list
  of one dict, and some devices None.

  >>> counted([{"flops": 2.0}]), counted({"flops": 2.0}), counted(None), counted({"flops": -1.0})
  ({'flops': 2.0}, {'flops': 2.0}, {}, {})
  """
  if isinstance(analysis, list | tuple):
    analysis = analysis[0] if analysis else None
  return {name: value for name, value in analysis.items() if value > 0} if isinstance(analysis, dict) else {}


def operations(function: Callable, *arguments: object) -> float:
  """Returns the operations of a function, counted before it is compiled.

  Only the CPU counts those of a program that is not compiled: plugins, which devices of Nvidia and TPUs are, return
  None. Where ``JAX_PLATFORMS`` leaves the CPU out, the program is compiled for the device and counted then.

  Args:
    function: the function.
    *arguments: its arguments, or their shapes.

  Raises:
    UserError: if nothing counts them.
  """
  try:
    device = jax.local_devices(backend="cpu")[0]
  except RuntimeError:
    device = None
  with jax.default_device(device):
    lowered = jax.jit(function).lower(*arguments)
  found = counted(lowered.cost_analysis()) or counted(lowered.compile().cost_analysis())
  if "flops" not in found:
    raise UserError(f"{jax.default_backend()} does not count the operations of a program: unset JAX_PLATFORMS, so that "
                    "the CPU does.")
  return found["flops"]
