"""A linear layer whose weight is packed once: `PackedLinear(weight, bias)`, then `layer(rows)`.

Back ends: `reference` writes the product out; `torch` is F.linear; `onednn` is torch's prepacked oneDNN weight, where
torch offers it; `native` is kernels/csrc. `auto` measures those that can run on this shape, once per process, and logs
what it took and why. `native` is batch-invariant: a row's bits depend on the row alone.
"""

import torch
from moe.kernels.dtypes import float_number
from moe.kernels.linear import measured, onednn_backend, reference, torch_backend
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.native import unavailable as native_unavailable
from moe.kernels.quantised import Weight, weight_shape
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

backends: Registry[measured.Factory] = Registry(
    "linear",
    ("native", "torch"),
    {
        "reference": reference.ReferenceLinear,
        "torch": torch_backend.TorchLinear,
        "onednn": onednn_backend.OneDnnLinear,
        "native": NativeLinear,
    },
    unavailable={"native": native_unavailable, "onednn": onednn_backend.unavailable},
    batch_invariant=frozenset({"native", "reference"}),
)


class PackedLinear:
    """rows [..., in] times weight [out, in] transposed, plus bias [out]; returns [..., out] in the rows' dtype.

    weight: float32, bfloat16 or float16, any strides, or a QuantisedWeight. Rows may be of any of these dtypes,
    whatever the weight's. A packing back end copies the weight and keeps no view of it. backend: a name in
    `backends.names()`; the one taken is in `backend`, the reason in `why`. `layer`: what it made; `bytes`: what that
    keeps resident. Raises ValueError for what doesn't fit, UnknownBackendError, UnavailableBackendError.
    """

    def __init__(self, weight: Weight, bias: Tensor | None = None, *, backend: str = AUTO) -> None:
        self.out, self.columns = _checked(weight, bias)
        if backend == AUTO:
            self.backend, self.why = measured.choose(backends, weight)
        else:
            self.backend, self.why = backends.resolve(backend), "asked for by name"
        self.layer = backends.get(self.backend)(weight, bias)

    @property
    def bytes(self) -> int:
        """Bytes kept resident for weight and bias."""
        return self.layer.bytes

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's bits depend on the row alone."""
        return self.backend in backends.batch_invariant

    def __call__(self, rows: Tensor) -> Tensor:
        """Raises ValueError for rows of another width or dtype."""
        if rows.dim() == 0 or rows.shape[-1] != self.columns:
            raise ValueError(f"rows: got shape {list(rows.shape)}, want [..., {self.columns}]")
        float_number(rows.dtype, "rows")
        flat = rows if rows.dim() == 2 else rows.reshape(-1, self.columns)
        out = self.layer(flat)
        return out if rows.dim() == 2 else out.view(*rows.shape[:-1], self.out)


def _checked(weight: Weight, bias: Tensor | None) -> tuple[int, int]:
    shape = weight_shape(weight)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"weight: got shape {list(shape)}, want [out, in], neither of them 0")
    if isinstance(weight, Tensor):
        float_number(weight.dtype, "weight")
    if bias is not None and (tuple(bias.shape) != shape[:1] or not bias.is_floating_point()):
        raise ValueError(f"bias: got {bias.dtype} {list(bias.shape)}, want floats [{shape[0]}]")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if isinstance(tensor, Tensor) and tensor.device != torch.device("cpu"):
            raise ValueError(f"{name}: is on {tensor.device}; this operator computes on cpu")
    return shape[0], shape[1]


__all__ = ["AUTO", "PackedLinear", "backends"]
