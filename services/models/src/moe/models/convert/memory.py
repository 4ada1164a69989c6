"""Gives freed memory back to the system while a conversion runs.

glibc keeps freed blocks below 32 MiB in its heap, where blocks still in use pin them: the process then stays larger by
up to a layer than what it holds. Elsewhere there is nothing to do.
"""

import ctypes


def release_freed() -> None:
    """Returns free heap pages to the system; does nothing where the C library has no `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
