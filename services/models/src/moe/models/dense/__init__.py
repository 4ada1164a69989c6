"""From a dense checkpoint to a Mixture of Experts: copied experts (`upcycle`) or split ones (`split`).

Both write a plain Hugging Face checkpoint directory, which the converter turns into a model package like any other.
The weights go through layer by layer, so that memory stays small whatever the model's size.
"""

from moe.models.dense.split import split
from moe.models.dense.upcycle import upcycle

__all__ = ["split", "upcycle"]
