"""Time and memory of calibrators, as ratios to one log-softmax of the same logits in the same run.

Run: python -m experiments.benchmarks.calibrators

Compilation is left out (it is printed apart); the fit, from logits on the device to params, is all inside. Beside
them, where installed, torch's L-BFGS temperature scaling as most often copied (step 0.01, 50 iterations) and netcal's.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax.calibrators import focal_temperature

TRUE_TEMPERATURE = 1.70


def logits_and_labels(n: int, k: int):
  """Random logits, and labels drawn at the true temperature."""
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  return logits, jax.random.categorical(jax.random.key(1), logits / TRUE_TEMPERATURE)


def seconds(function, repeats: int = 3) -> tuple[float, float]:
  """The shortest duration of several calls, and what the first took beyond it."""
  found = []
  for _ in range(repeats + 1):
    start = time.perf_counter()
    jax.block_until_ready(function())
    found.append(time.perf_counter() - start)
  return min(found[1:]), found[0] - min(found[1:])


def row(name: str, function, floor: float, note) -> None:
  """Prints one line of the table; ``note`` of the params."""
  duration, compiling = seconds(function)
  cells = name, f"{duration:.3f}", f"{duration / floor:.1f}", f"{max(compiling, 0):.1f}", note(function())
  print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
  """Prints the tables."""
  device = jax.devices()[0]
  print(f"{device.device_kind}, {len(jax.devices())} device(s), JAX {jax.__version__}")
  log_softmax = jax.jit(jax.nn.log_softmax)
  for n, k, names in ((50_000, 1000, ("temperature_scaling", "vector_scaling", "class_temperature_scaling",
                                      "ensemble_temperature_scaling")),
                      (5000, 100, ("temperature_scaling", "vector_scaling", "class_temperature_scaling",
                                   "ensemble_temperature_scaling", "parameterized_temperature_scaling",
                                   "matrix_scaling", "dirichlet", "platt", "isotonic", "histogram_binning",
                                   "classwise_loss_scaling"))):
    logits, labels = logits_and_labels(n, k)
    floor, _ = seconds(lambda z=logits: log_softmax(z), 9)
    print(f"\n[{n:,} x {k:,}], log-softmax {floor * 1e3:.1f} ms\n\n| fit | seconds | passes | compiling | ended |")
    print("|---|---|---|---|---|")
    for name in names:
      calibrator = calibrators.get(name)
      row(name, lambda c=calibrator, z=logits, y=labels: c.fit(z, y), floor, _ended)
    if k == 1000:
      _peers(np.asarray(logits), np.asarray(labels), floor)
      continue
    durations = {}
    for search in ("grid", "line"):
      calibrator = calibrators.focal_temperature_scaling(search=search)
      row(f"focal temperature, {search}", lambda c=calibrator, z=logits, y=labels: c.fit(z, y), floor,
          lambda p: f"ECE {100 * float(p['value']):.2f}%, {int(p['iterations'])} evaluations")
      durations[search] = seconds(lambda c=calibrator, z=logits, y=labels: c.fit(z, y))[0]
    compiled = jax.jit(focal_temperature._grid, static_argnums=0).lower(
      "ece", logits, labels, jnp.ones(n, bool), jnp.float32(1)).compile()
    print(f"\nThe line is {durations['grid'] / durations['line']:.0f} times cheaper than the grid, which needs "
          f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:.0f} MB beside the logits.")


def _ended(params) -> str:
  if "converged" not in params:
    return ""
  said = f"{'converged' if params['converged'] else 'not converged'}, {int(params['iterations'])} iterations"
  return said + (f", T = {float(params['temperature']):.3f}" if "temperature" in params else "")


def _peers(logits: np.ndarray, labels: np.ndarray, floor: float) -> None:
  try:
    import torch
  except ImportError:
    return
  z, y = torch.from_numpy(logits.copy()), torch.from_numpy(labels.astype(np.int64))
  temperature = torch.nn.Parameter(torch.full((1,), 1.5))
  optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

  def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(z / temperature, y)
    loss.backward()
    return loss

  start = time.perf_counter()
  optimizer.step(closure)
  duration = time.perf_counter() - start
  name, found = f"torch {torch.__version__} L-BFGS", temperature.item()
  print(f"| {name} | {duration:.3f} | {duration / floor:.1f} | | T = {found:.3f} |")
  try:
    from netcal.scaling import TemperatureScaling
  except ImportError:
    return
  probs = np.asarray(jax.nn.softmax(logits))
  start = time.perf_counter()
  peer = TemperatureScaling()
  peer.fit(probs, labels)
  duration = time.perf_counter() - start
  print(f"| netcal | {duration:.3f} | {duration / floor:.1f} | | 1/T = {float(np.ravel(peer.temperature)[0]):.3f} |")


if __name__ == "__main__":
  main()
