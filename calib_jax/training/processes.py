"""One run on several processes: finding each other, agreeing, and ending together."""

import atexit
import os
import subprocess
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np

from calib_jax.errors import UserError

LOST = ("another process of this run ended or cannot be reached: start all of them again with the same command, and "
        "the run goes on from its last checkpoint.")
_SILENCE = 30  # Seconds without a sign of life after which a process counts as dead.


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
  """Joins the processes of a run, before anything else is asked of JAX; alone where there are no others.

  ``coordinator`` is ``host:port`` of the first process. Without it JAX reads who takes part from the environment, where
  Cloud TPU, SLURM or Open MPI started the processes. UserError where the others cannot be reached.
  """
  given = (coordinator, num_processes, process_id)
  if any(x is not None for x in given) and any(x is None for x in given):
    raise UserError("--coordinator, --num_processes and --process_id go together: the first is host:port of process 0, "
                    "the same in all processes.")
  if process_id is not None and not 0 <= process_id < num_processes:
    raise UserError(f"--process_id must be in [0, {num_processes - 1}], one of each: got {process_id}.")
  # In every pod of Kubernetes JAX would look for others, and complain where it is not allowed to: there, flags say it.
  pod = os.environ.pop("KUBERNETES_SERVICE_HOST", None)
  try:
    jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=_SILENCE)
  except ValueError:  # JAX found no cluster.
    if coordinator is not None:
      raise
  except RuntimeError as error:
    raise UserError(f"the processes of this run did not find each other ({str(error).splitlines()[0]}): --coordinator "
                    "must be an address of process 0 that all can reach, and all must start within five minutes."
                    ) from error
  finally:
    if pod is not None:
      os.environ["KUBERNETES_SERVICE_HOST"] = pod
  if len({len([d for d in jax.devices() if d.process_index == i]) for i in range(jax.process_count())}) > 1:
    raise UserError("all processes of a run must have the same number of devices: this one has "
                    f"{jax.local_device_count()} of {jax.device_count()} on {jax.process_count()} processes.")


  if jax.process_count() > 1:
    _herald()


def _herald() -> None:
  """Lets a small process say what happened where this one ends without a word of its own.

  JAX aborts a process whose peers are dead, with a stack trace and no way for Python to speak.
  """
  script = "import sys; sys.stdin.read() or print('error: ' + sys.argv[1], file=sys.stderr)"
  child = subprocess.Popen([sys.executable, "-S", "-c", script, LOST], stdin=subprocess.PIPE, text=True,
                           start_new_session=True)
  atexit.register(lambda: child.communicate("ended"))


def is_first() -> bool:
  """Whether this process writes the files and speaks to the user."""
  return jax.process_index() == 0


def agreed(value: bool) -> bool:
  """What the first process says, in all of them."""
  return bool(multihost_utils.broadcast_one_to_all(np.bool_(value))) if jax.process_count() > 1 else value
