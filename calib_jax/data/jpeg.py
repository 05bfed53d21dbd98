"""Decodes JPEG bytes into arrays."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import io
import itertools

import numpy as np

from calib_jax.errors import UserError


def picture(record: bytes, number: int, source: str):
  """Returns the Pillow image of a JPEG record, in RGB.

  Raises: UserError that names the ``number`` of the record if the bytes are damaged.
  """
  from PIL import Image

  try:
    with Image.open(io.BytesIO(record)) as opened:
      return opened.convert("RGB")
  except Exception as error:  # Pillow raises exceptions of many types for damaged bytes.
    raise UserError(f"{source}: record {number:,} is not a whole picture ({error}).") from error


def decode(records: Sequence[bytes], source: str) -> np.ndarray:
  """Decodes ``records``, pictures of one size, into uint8 ``[N, H, W, 3]``; grey pictures become RGB.

  Raises: UserError that names ``source`` and the record, if one cannot be decoded or differs in size.
  """
  with ThreadPoolExecutor() as pool:
    images = list(pool.map(lambda i, record: np.asarray(picture(record, i, source)), range(len(records)), records))
  for number, image in enumerate(images):
    if image.shape != images[0].shape:
      raise UserError(f"{source}: record {number:,} is {image.shape[0]}x{image.shape[1]} where the first is "
                      f"{images[0].shape[0]}x{images[0].shape[1]}: all pictures must have one size.")
  return np.stack(images)


def slices(stream: np.ndarray, offsets: np.ndarray, source: str) -> list[bytes]:
  """Cuts a byte stream into records ``stream[offsets[i]:offsets[i + 1]]``.

  Raises: UserError if the offsets do not fit the stream.
  """
  if stream.dtype != np.uint8 or stream.ndim != 1 or offsets.ndim != 1 or not np.issubdtype(offsets.dtype, np.integer):
    raise UserError(f"{source}: a stream of JPEG bytes must be uint8 [bytes] with integer offsets [N + 1]: got "
                    f"{stream.dtype} of shape {stream.shape} and {offsets.dtype} of shape {offsets.shape}.")
  if len(offsets) < 2 or offsets[0] < 0 or (np.diff(offsets) <= 0).any() or offsets[-1] > len(stream):
    raise UserError(f"{source}: offsets must rise from 0 to at most the {len(stream):,} bytes of the stream.")
  return [stream[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
