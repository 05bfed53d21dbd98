"""A run may use several processes: they connect, agree on decisions, and end together."""

import atexit
import os
import subprocess
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np

from calib_jax._system.errors import UserError

LOST = ("another process of this run ended or cannot be reached: start all of them again with the same command, and "
        "the run continues from its last checkpoint.")
_connected: tuple | None = None  # The arguments with which this process has connected.
_child: subprocess.Popen | None = None  # What ``_herald`` started.
_SILENCE = 30  # Seconds without a heartbeat after which JAX treats a process as dead.


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
  """Connects the processes of a run: the first one's ``host:port``, their number, and the index of this one, from 0.

  It must run before any other use of JAX. Without arguments JAX finds the other processes in the environment if Cloud
  TPU, SLURM or Open MPI started them, and the run has one process otherwise. Arguments that do not fit together, JAX
  in use already, a process that cannot be reached, and different numbers of devices are a UserError.
  """
  global _connected
  arguments = (coordinator, num_processes, process_id)
  if _connected == arguments:
    return  # An earlier run in this process has connected already, which JAX allows only once.
  if any(x is not None for x in arguments) and any(x is None for x in arguments):
    raise UserError("--coordinator, --num_processes and --process_id go together: give all three, with the same "
                    "host:port of process 0 as --coordinator of every process.")
  if process_id is not None and not 0 <= process_id < num_processes:
    raise UserError(f"--process_id must be in [0, {num_processes - 1}] and different in every process: "
                    f"got {process_id}.")
  # In a Kubernetes pod JAX would search for other processes and fail without permission, so the flags decide there.
  pod = os.environ.pop("KUBERNETES_SERVICE_HOST", None)
  try:
    jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=_SILENCE)
  except ValueError:  # JAX found no cluster.
    if coordinator is not None:
      raise
  except RuntimeError as error:
    if "before any JAX" in str(error):  # A notebook, for example.
      raise UserError("JAX is in use in this process already, so that it cannot look for other processes of the run: "
                      "start main.py as a program, or call calib_jax.training.execute(config, workdir), which looks "
                      "for none.") from error
    raise UserError(f"the processes of this run did not find each other ({str(error).splitlines()[0]}): --coordinator "
                    "must be an address of process 0 that every process can reach, and all must start within five "
                    "minutes.") from error
  finally:
    if pod is not None:
      os.environ["KUBERNETES_SERVICE_HOST"] = pod
  _check_devices()
  if len({len([d for d in jax.devices() if d.process_index == i]) for i in range(jax.process_count())}) > 1:
    raise UserError("all processes of a run must have the same number of devices: this one has "
                    f"{jax.local_device_count()} of {jax.device_count()} devices on {jax.process_count()} processes.")
  _connected = arguments
  if jax.process_count() > 1:
    _herald()


def _check_devices() -> None:
  """Raises a UserError if JAX has no device of the kind that JAX_PLATFORMS asks for."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # JAX asserts that it finds the platform cuda.
    asked = os.environ.get("JAX_PLATFORMS", "")
    extra = {"cuda": "jax[cuda13]", "gpu": "jax[cuda13]", "tpu": "jax[tpu]"}.get(asked.split(",")[0])
    install = f"pip install '{extra}=={jax.__version__}', or " if extra else ""
    raise UserError(f"JAX finds no device for JAX_PLATFORMS={asked}: {install}unset JAX_PLATFORMS, which takes what "
                    "there is.") from error


def _herald() -> None:
  """Starts a process that prints ``LOST`` if this one is killed: JAX aborts it before Python can print."""
  global _child
  script = "import sys; sys.stdin.read() or print('error: ' + sys.argv[1], file=sys.stderr)"
  _child = subprocess.Popen([sys.executable, "-S", "-c", script, LOST], stdin=subprocess.PIPE, text=True,
                            start_new_session=True)
  atexit.register(_child.communicate, "ended")


def leave(code: int) -> None:
  """Ends this process at once if its run has others: a normal exit would wait minutes for them, and they for it."""
  if _child is not None:
    _child.communicate("ended")
    os._exit(code)


def is_first() -> bool:
  """Returns whether this process writes the files and prints messages."""
  return jax.process_index() == 0


def agreed(value: bool) -> bool:
  """Returns the first process's ``value`` in every process."""
  return bool(of_first(np.bool_(value)))


def largest(value: float) -> float:
  """Returns the largest of all processes' values in every process."""
  return float(np.max(multihost_utils.process_allgather(np.float32(value)))) if jax.process_count() > 1 else value


def of_first(array: np.ndarray) -> np.ndarray:
  """Returns the first process's array, whose shape and dtype are the same everywhere, in every process."""
  return np.asarray(multihost_utils.broadcast_one_to_all(array)) if jax.process_count() > 1 else array
