"""The backbone that the router steps: the library's model, connected at the seams, over a slot cache."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from moe.models.backbone.cache import SlotCache
from moe.models.backbone.facts import read_facts
from moe.models.backbone.fixed_shapes import FixedShapes
from moe.models.backbone.geometry import Geometry
from moe.models.backbone.latent import LatentProjection
from moe.models.backbone.linears import LinearKernel, LinearReport, pack_linears
from moe.models.backbone.load import backbone_directory, load_without_experts
from moe.models.backbone.native_gates import connect_native_gates
from moe.models.backbone.native_layers import connect_layers
from moe.models.backbone.native_projection import connect_attention
from moe.models.backbone.recurrent import find_recurrent, wrap_recurrent
from moe.models.backbone.segments import PackedRows, check_batch
from moe.models.backbone.small_kernels import AttentionKernel, attention_kernel_here, connect_norms
from moe.models.backbone.step_cache import StepCache
from moe.models.backbone.survey import find_latent, survey_layers
from moe.models.backbone.tiles import padded_rows
from moe.models.contract import BackboneInfo, Experts, PackedBatch, Segment, Strategy
from moe.models.package import Package
from moe.models.seams.attention import PACKED_ATTENTION
from moe.models.seams.errors import StepError
from moe.models.seams.experts import ExpertsSeam, connect_experts
from moe.models.seams.gates import ExpertMask, Gate, TopK, connect_gates, find_gates
from moe.models.seams.shared import connect_shared
from torch import Tensor
from torch.nn import functional


class TransformersBackbone:
    """A `Backbone` (see `moe.models.contract`) over a model of Hugging Face transformers.

    Not thread-safe: one thread steps. gates: layer -> gate, whose `patches` may be changed between steps. linears: what
    the linear layers run; attention_kernel: what attention and norms do.
    """

    def __init__(
        self,
        model: Any,
        *,
        deterministic: bool,
        linear_kernel: LinearKernel = "auto",
        attention_kernel: AttentionKernel = "auto",
    ) -> None:
        self._model, self._deterministic = model, deterministic
        self.attention_kernel = attention_kernel_here(attention_kernel)
        self._mode = FixedShapes() if deterministic else None
        outside, inside = (self._mode.pause, self._mode.resume) if self._mode else (nullcontext, nullcontext)
        self._seam = ExpertsSeam(outside, inside)
        counts = connect_experts(model, self._seam)
        self.gates: dict[int, Gate] = find_gates(model)
        connect_gates(self.gates)
        self._mask = ExpertMask(self.gates)
        self._topk = TopK(self.gates)
        facts = read_facts(model)
        self.geometry: Geometry = self._survey(facts.layers, facts.max_context)
        self._latents = {layer: LatentProjection(module) for layer, module in find_latent(model).items()}
        self._connect_layers()
        self._seam.shared = connect_shared(model)
        if self.attention_kernel == "native":
            connect_norms(model)
        self.linears: LinearReport = self._pack_linears(linear_kernel)
        if self.attention_kernel == "native":
            connect_attention(model, self.linears.packed)
            connect_native_gates(self.gates.values())
            connect_layers(model)
        # A product that is the same for any number of rows needs no tiles; nor do sums along a row.
        self._tiled = deterministic and not self.linears.invariant
        self.info: BackboneInfo = facts.info(
            topk=max(gate.topk for gate in self.gates.values()),
            moe_layers=counts,
            kv_bytes_per_token=self.geometry.bytes_per_token,
        )
        self._cache: SlotCache | None = None

    def allocate(self, slots: int, slot_tokens: int) -> None:
        """Reserves the cache; an earlier one is given up first.

        slot_tokens: at most the model's longest context. Raises MemoryError with the sizes, StepError for a bad count.
        """
        for name, value, bound in (("slots", slots, None), ("slot_tokens", slot_tokens, self.info.max_context)):
            if value < 1 or (bound is not None and value > bound):
                raise StepError(f"{name}: got {value}; want 1 to {bound or 'as many as memory holds'}")
        self._cache = None
        self._cache = SlotCache(self.geometry, slots, slot_tokens, native=self.attention_kernel == "native")

    @torch.inference_mode()
    def step(self, batch: PackedBatch, experts: Experts) -> Tensor:
        """Runs the packed tokens; returns float32 logits [wanted, vocabulary].

        Raises StepError when the batch breaks the contract; what `experts` raises passes through. After an exception
        the step's slots are as before and the step may be repeated; where a layer is recurrent they must begin anew.
        """
        cache = self._allocated()
        check_batch(batch, cache.lengths, cache.slot_tokens, self.info.vocabulary)
        count = batch.token_ids.shape[0]
        rows = PackedRows(batch.segments, padded_rows(count) if self._tiled else count)
        cache.begin(rows)
        self._seam.begin(experts, rows)
        try:
            logits = self._forward(batch, rows, cache)
        except BaseException:
            cache.spoil(rows)
            raise
        finally:
            self._seam.end()
        cache.commit(rows)
        return logits

    def release(self, slot: int) -> None:
        """Tells that a slot's sequence is over."""
        cache = self._allocated()
        if not 0 <= slot < cache.slots:
            raise StepError(f"slot: got {slot}; want 0 to {cache.slots - 1}")
        cache.release(slot)

    @contextmanager
    def without_fixed_shapes(self) -> Iterator[None]:
        """Leaves deterministic mode for a block, to tell what it costs; no sequence may go on across the border."""
        tiled, mode = self._tiled, self._mode
        self._tiled, self._mode = False, None
        try:
            yield
        finally:
            self._tiled, self._mode = tiled, mode

    def mask_experts(self, dead: Mapping[int, Sequence[int]]) -> None:
        """Keeps these experts (layer -> ids), and no others, from being chosen from the next step on.

        Where fewer than k are alive, the missing choices become dropped slots.
        """
        self._seam.dead = self._mask.set(dead)

    def route(self, topk: int, strategy: Strategy) -> None:
        """See moe.models.contract.Backbone."""
        if strategy == "drop":
            self._topk.check_fewer(topk)
        self._topk.set(topk if strategy == "family" else 0)
        self._seam.keep = topk if strategy == "drop" else 0

    def _forward(self, batch: PackedBatch, rows: PackedRows, cache: SlotCache) -> Tensor:
        wanted = batch.logit_rows.shape[0]
        token_ids, kept = batch.token_ids, batch.logit_rows
        if self._tiled:
            token_ids = functional.pad(token_ids, (0, rows.padded - rows.count))
            kept = functional.pad(kept, (0, padded_rows(wanted) - wanted))
        with self._mode or nullcontext():
            output = self._model(
                input_ids=token_ids[None],
                position_ids=rows.positions[None],
                cache=StepCache(cache, rows, self._latents, self._mode),
                use_cache=False,
                logits_to_keep=kept,
            )
        logits: Tensor = output.logits[0, :wanted].float()
        return logits

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise StepError("cache: nothing is allocated; call allocate first")
        return self._cache

    def _survey(self, layers: int, max_context: int) -> Geometry:
        def nothing(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
            return torch.zeros_like(hidden)

        self._seam.begin(nothing, PackedRows([Segment(0, 0, 1)]))
        try:
            return survey_layers(self._model, layers, max_context)
        finally:
            self._seam.end()

    def _pack_linears(self, kernel: LinearKernel) -> LinearReport:
        return pack_linears(
            self._model,
            [gate.module for gate in self.gates.values()],
            [module.kv_b_proj for module in find_latent(self._model).values()],
            kernel=kernel,
            deterministic=self._deterministic,
        )

    def _connect_layers(self) -> None:
        for module in find_latent(self._model).values():
            # The cache holds the latents; packed attention expands or absorbs them itself.
            module.expand_kv = lambda latent, rotary: (latent, rotary)
        for module in find_recurrent(self._model).values():
            wrap_recurrent(module, deterministic=self._deterministic)
        self._model.set_attn_implementation(PACKED_ATTENTION)


def load_backbone(
    package: Path | Package,
    *,
    dtype: torch.dtype | Literal["auto"] = "auto",
    deterministic: bool = False,
    linear_kernel: LinearKernel = "auto",
    attention_kernel: AttentionKernel = "auto",
) -> TransformersBackbone:
    """Loads the backbone of a model package (or of a Hugging Face directory) without ever reading expert tensors.

    dtype auto is the checkpoint's own. deterministic: a row's bits depend neither on the batch nor on chunking.
    linear_kernel: what linear layers compute with, see moe.models.backbone.linears. attention_kernel: what attention
    and norms compute with, see moe.models.backbone.small_kernels.
    Raises UnsupportedBackboneError with the reason, BackboneWeightsError naming tensors, PackageError.
    """
    model = load_without_experts(backbone_directory(package), None if dtype == "auto" else dtype)
    return TransformersBackbone(
        model, deterministic=deterministic, linear_kernel=linear_kernel, attention_kernel=attention_kernel
    )
