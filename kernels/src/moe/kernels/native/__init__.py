"""The C++ back end (kernels/csrc), found and opened: `library()`, or why it is not there: `unavailable()`.

It is built by `make setup` where there is a C++ compiler, or by `make kernels-native`. Nothing is compiled at run time
and nothing runs in its place without saying so.
"""

from moe.kernels.native.library import Library, NativeError, library, unavailable, variants

__all__ = ["Library", "NativeError", "library", "unavailable", "variants"]
