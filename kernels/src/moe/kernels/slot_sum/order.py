"""What a back end has to refuse: rows out of order or range."""

from torch import Tensor


def check_order(slot_rows: Tensor, rows: int) -> None:
    """Raises ValueError unless the rows don't decrease and lie within 0 to rows - 1."""
    if len(slot_rows) == 0:
        return
    if int(slot_rows[0]) < 0 or int(slot_rows[-1]) >= rows or bool((slot_rows[1:] < slot_rows[:-1]).any()):
        raise ValueError(f"slot_rows: must not decrease and lie within 0 to {rows - 1}")
