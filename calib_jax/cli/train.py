"""The command line of a run: ``python main.py``, or ``calib-jax train`` where the package is installed."""

import argparse
from collections.abc import Callable, Sequence
import errno
import pathlib
import sys
from typing import Any

import jax

from calib_jax import training
from calib_jax._system.errors import UserError, printable
from calib_jax.training import config as run_config
from calib_jax.training import run
from calib_jax.training.distributed import processes
from calib_jax.training.run import directory


def main(arguments: list[str] | None = None, hooks: Sequence[Callable[..., Any]] = ()) -> int:
  """Runs the command line, or ``arguments`` in place of it, with the ``hooks`` of ``training.train``.

  It returns the exit code: 0; 2 after a mistake of the user; 3 if another process was lost; 128 plus the number of the
  signal that stopped the run.
  """
  parser = argparse.ArgumentParser(
    description="Trains, recalibrates, evaluates and reports in one run directory.", allow_abbrev=False)
  parser.add_argument("--config", required=True, help="a file with get_config(), such as configs/digits_savuc.py; it "
                      "is Python and is executed, so use only files that you trust")
  parser.add_argument("--workdir", help="the run's directory, created if it does not exist")
  parser.add_argument("--print_config", action="store_true", help="print every field of the config, those that differ "
                      "from configs/common.py first, and train nothing")
  parser.add_argument("--coordinator", help="host:port of the first of several processes")
  parser.add_argument("--num_processes", type=int, help="the number of processes of the run")
  parser.add_argument("--process_id", type=int, help="the index of this process, from 0")
  options, overrides = parser.parse_known_args(arguments)
  try:
    if options.print_config:
      print(run_config.printed(run_config.load(options.config, overrides)))
      return 0
    if options.workdir is None:
      raise UserError("--workdir names the run's directory: --workdir=runs/mine.")
    directory.check_workdir(options.workdir)
    processes.connect(options.coordinator, options.num_processes, options.process_id)
    config = run_config.load(options.config, overrides)
    run_config.check(config, jax.device_count())
    run.execute(config, pathlib.Path(options.workdir), hooks)
    return 0
  except UserError as error:
    code, message = 2, f"error: {error}"
  except training.Stopped as stopped:
    code, message = 128 + stopped.signal, f"\n{stopped}"
  except KeyboardInterrupt:
    code, message = 130, "\nstopped; the same command continues from the last checkpoint."
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    where = error.filename or options.workdir
    code, message = 2, f"error: {where}: {error.strerror}; free some space and run the same command again."
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    code, message = 3, f"error: {processes.LOST} ({str(error).splitlines()[0]})"
  print(printable(message, lines=True), file=sys.stderr, flush=True)
  if code in (2, 3):
    processes.leave(code)
  return code
