"""Tensors as the C ABI takes them before packing."""

from moe.kernels.dtypes import INT8_DYNAMIC_NUMBER, INT8_NUMBER, float_number
from moe.kernels.native.library import MatrixStruct
from moe.kernels.quantised import QuantisedWeight, Weight


def matrix_struct(weight: Weight, *, round_rows: bool = False) -> MatrixStruct:
    """A view of a weight [out, in]; the weight must stay alive while it is used. Raises ValueError for its dtype.

    round_rows: products with a quantised weight round their rows to bytes, too (moe.kernels.quantised.round_rows).
    """
    if isinstance(weight, QuantisedWeight):
        values, number = weight.q, INT8_DYNAMIC_NUMBER if round_rows else INT8_NUMBER
        scale, offset = weight.scale.contiguous(), weight.offset.contiguous()
        struct = MatrixStruct(values.data_ptr(), scale.data_ptr(), offset.data_ptr())
        struct.owned = (scale, offset)
        struct.group = weight.group_size or 0
    else:
        values, number = weight, float_number(weight.dtype, "weight")
        struct = MatrixStruct(values.data_ptr(), None, None)
    struct.out, struct.in_ = values.shape
    struct.out_stride, struct.in_stride = values.stride()
    struct.dtype = number
    return struct
