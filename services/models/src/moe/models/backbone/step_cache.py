"""What the library's layers get as their cache during one step: it stores keys and values and carries the step along.

Attention functions receive it as the keyword `packed`, which `update` adds, and ask it to attend.
"""

from typing import Any

from moe.kernels.attention import KeyRanges
from moe.kernels.attention.native_backend import NativeAttention
from moe.kernels.attention.projection import Rotary
from moe.models.backbone.attention import Plan, attend_packed, plan_attention
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.fixed_shapes import FixedShapes
from moe.models.backbone.geometry import Visibility
from moe.models.backbone.latent import LatentProjection, attend_latent
from moe.models.backbone.native_attention import NativePlan, attend_native, plan_native
from moe.models.backbone.segments import PackedRows
from moe.models.backbone.tiled_attention import TilePlan, attend_tiled, attend_tiled_latent, plan_tiles
from torch import Tensor


class StepCache:
    """One step's view of the slot cache. `slots` is the slot cache, `rows` the step's rows.

    mode: deterministic mode, which attention pauses; None without.
    """

    def __init__(
        self, slots: SlotCache, rows: PackedRows, latents: dict[int, LatentProjection], mode: FixedShapes | None
    ) -> None:
        self.slots, self.rows = slots, rows
        self._latents, self._mode = latents, mode
        self._plans: dict[Visibility, Plan] = {}
        self._tiles: dict[Visibility, TilePlan] = {}
        self._native: dict[tuple[Visibility, bool], NativePlan] = {}
        self._rotary: tuple[Tensor, Rotary] | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, kwargs: dict[str, Any], **__: object
    ) -> tuple[Tensor, Tensor]:
        """Stores the step's keys and values [1, heads, rows, size]; called by the library's attention modules."""
        count, facts = self.rows.count, self.slots.geometry.attention[layer_idx]
        kernel = self.slots.attention.get(layer_idx)
        if kernel is None or facts.latent:
            self.slots.write(layer_idx, self.rows, keys[0, :, :count], values[0, :, :count])
        else:
            new_keys, new_values = (each[0, :, :count].transpose(0, 1) for each in (keys, values))
            kernel.store(new_keys, new_values, self.rows.ranges(facts.visibility))
        kwargs["packed"] = self
        return keys, values

    def kernel(self, layer: int) -> NativeAttention | None:
        """What attends in a layer, where that is moe.kernels and no row is padding."""
        found = self.slots.attention.get(layer)
        if found is None or self.rows.padded != self.rows.count:
            return None
        return found.run if isinstance(found.run, NativeAttention) else None

    def native_way(self, layer: int) -> tuple[NativeAttention, KeyRanges] | None:
        """What attends in a layer and the keys that each row sees, where all rows go native alike."""
        kernel = self.kernel(layer)
        if kernel is None or self._native_plan(layer).rows is not None:
            return None
        return kernel, self.ranges(layer)

    def ranges(self, layer: int) -> KeyRanges:
        """The keys that each row sees in a layer."""
        return self.rows.ranges(self.slots.geometry.attention[layer].visibility)

    def rotary(self, cos: Tensor, sin: Tensor, *, halves: bool) -> Rotary:
        """The angles [1, rows, width] of the step, which most layers share."""
        known = self._rotary
        if known is None or known[0] is not cos or known[1].halves != halves:
            self._rotary = known = (cos, Rotary(cos[0], sin[0], halves=halves))
        return known[1]

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        """What makes `arange(rows) + length` each row's position: Llama 4 scales its queries by it."""
        return self.rows.positions - self.rows.offsets

    def attend(self, layer: int, query: Tensor, *, scale: float, sinks: Tensor | None) -> Tensor:
        """Attention of queries [1, query heads, rows, size]; gives [1, rows, query heads, v]."""
        queries = query[0].transpose(0, 1)
        native = layer in self.slots.attention
        if self._mode is None:
            attend = self.attend_rows if native else self._attend
            return attend(layer, queries, scale, sinks)[None]
        with self._mode.pause():
            attend = self.attend_rows if native else self._attend_tiled
            mixed = attend(layer, queries[: self.rows.count], scale, sinks)
        if self.rows.padded == self.rows.count:
            return mixed[None]
        result = mixed.new_zeros(self.rows.padded, *mixed.shape[1:])
        result[: self.rows.count] = mixed
        return result[None]

    def _attend(self, layer: int, query: Tensor, scale: float, sinks: Tensor | None) -> Tensor:
        facts = self.slots.geometry.attention[layer]
        plan = self._plans.get(facts.visibility)
        if plan is None:
            plan = self._plans[facts.visibility] = plan_attention(self.rows, facts.visibility, facts.dtype)
        if facts.latent:
            return attend_latent(plan, self.slots, layer, query, self._latents[layer], scale=scale)
        return attend_packed(plan, self.slots, layer, query, scale=scale, sinks=sinks)

    def attend_rows(self, layer: int, query: Tensor, scale: float, sinks: Tensor | None) -> Tensor:
        """The same by moe.kernels, for queries [rows, query heads, size] of real rows; gives [rows, query heads, v]."""
        latent = self._latents.get(layer)
        return attend_native(self._native_plan(layer), self.slots, layer, query, latent, scale=scale, sinks=sinks)

    def _native_plan(self, layer: int) -> NativePlan:
        facts = self.slots.geometry.attention[layer]
        key = (facts.visibility, facts.latent)
        plan = self._native.get(key)
        if plan is None:
            plan = self._native[key] = plan_native(self.rows, facts, deterministic=self._mode is not None)
        return plan

    def _attend_tiled(self, layer: int, query: Tensor, scale: float, sinks: Tensor | None) -> Tensor:
        facts = self.slots.geometry.attention[layer]
        plan = self._tiles.get(facts.visibility)
        if plan is None:
            plan = self._tiles[facts.visibility] = plan_tiles(self.rows, facts.visibility)
        if facts.latent:
            return attend_tiled_latent(plan, self.slots, layer, query, self._latents[layer], scale=scale)
        return attend_tiled(plan, self.slots, layer, query, scale=scale, sinks=sinks)
