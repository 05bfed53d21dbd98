"""Decodes the bytes of JPEG and PNG pictures into arrays."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import io
import itertools
from typing import Any
import warnings

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import UserError, short

# Pillow's decoders of other formats are not for bytes of anyone: EPS runs Ghostscript.
FORMATS = ("JPEG", "PNG")
LARGEST = 2**27  # Pixels of a picture.


def picture(record: bytes, number: int, source: str, size: tuple[int, int] | None = None, count: int = 1
            ) -> Any:
  """Returns the Pillow image of the bytes of a JPEG or PNG ``record``, in RGB.

  Its ``number`` and ``source`` are for messages; ``size`` is the width and height that it must have, and ``count`` the
  number of pictures of this size that are to be in memory. Bytes that are damaged or of another format, pictures of
  another size or of more than 8 bits a channel, and more than may be in memory are a UserError. All of this but damage
  is checked before pixels are decoded.
  """
  from PIL import Image

  try:
    with Image.open(io.BytesIO(record), formats=FORMATS) as opened:
      (width, height), mode = opened.size, opened.mode
      if size is not None and size != (width, height):
        raise UserError(f"{source}: record {number:,} is {height}x{width} where the first is {size[1]}x{size[0]}: all "
                        "pictures must have one size.")
      if width * height > LARGEST or mode.startswith(("I", "F")):
        raise UserError(f"{source}: record {number:,} has {width:,} x {height:,} pixels of mode {mode}: pictures must "
                        f"have at most {LARGEST:,} pixels, and 8 bits a channel.")
      capacity.check_read(f"{source}: {count:,} pictures of {height}x{width}", count * height * width * 3)
      return opened.convert("RGB")
  except UserError:
    raise
  except Exception as error:  # Pillow raises exceptions of many types for damaged bytes.
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    if type(error).__name__ == "UnidentifiedImageError":  # Whose text has an address in memory.
      reason = f"it begins with {short(record[:20])}"
    raise UserError(f"{source}: record {number:,} is not a whole picture in JPEG or PNG ({reason}).") from error


def decode(records: Sequence[bytes], source: str) -> np.ndarray:
  """Decodes ``records``, pictures of one size that fit in memory, into uint8 RGB, or a UserError on ``source``."""
  from PIL import Image

  if not records:
    raise UserError(f"{source} holds no pictures.")
  # What Pillow warns of, a picture of very many pixels, is refused by its size or because all of them are too large.
  with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
    size = picture(records[0], 0, source, count=len(records)).size
    images = np.empty((len(records), *size[::-1], 3), np.uint8)

    def decoded(number):
      images[number] = picture(records[number], number, source, size)

    with ThreadPoolExecutor() as pool:
      for _ in pool.map(decoded, range(len(records))):
        pass
  return images


def slices(stream: np.ndarray, offsets: np.ndarray, source: str) -> list[bytes]:
  """Cuts a stream into records ``stream[offsets[i]:offsets[i + 1]]``; a UserError if the offsets do not fit it."""
  if stream.dtype != np.uint8 or stream.ndim != 1 or offsets.ndim != 1 or not np.issubdtype(offsets.dtype, np.integer):
    raise UserError(f"{source}: a stream of JPEG bytes must be uint8 [bytes] with integer offsets [N + 1]: got "
                    f"{stream.dtype} of shape {stream.shape} and {offsets.dtype} of shape {offsets.shape}.")
  offsets = offsets.astype(np.int64)  # Differences of unsigned integers would never be negative.
  if len(offsets) < 2 or offsets[0] < 0 or (np.diff(offsets) <= 0).any() or offsets[-1] > len(stream):
    fall = np.flatnonzero(np.diff(offsets) <= 0)
    record = f" Record {fall[0]:,} has no bytes." if len(fall) else ""
    raise UserError(f"{source}: offsets must rise from 0 to at most the {len(stream):,} bytes of the stream.{record}")
  return [stream[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
