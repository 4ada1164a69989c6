"""Which formula a family's experts compute, derived from their module and proved by numbers.

A family says little of its formula that can be trusted blindly: decorators tell the layout, `act_fn` and `_apply_gate`
are code. So the formula is found by trying the known ones on a grid of values, and the whole expert, with its real
weights in the standard layout, is compared with the module's own forward. What agrees with no known formula is
refused with the reason.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from moe.kernels.ffn import AUTO, ExpertWeights, FfnSpec, ffn
from moe.models.errors import UnsupportedModelError
from moe.models.probe import probe_rows
from moe.models.seams.experts_discovery import ExpertsModule
from torch import Tensor, nn

_PLAIN = ("silu", "gelu", "gelu_tanh", "relu2")
_GRID_TOLERANCE = 1e-5
"""Relative: some families' gates compute in float32 whatever they are given; another curve is off by far more."""
_PROOF_TOLERANCE = 1e-3
"""Relative to a row's norm: the module computes in float32, whose errors stay near 1e-6; a wrong layout is off by 1."""
_BLOCK_BYTES = 2 << 20


def derive_ffn(experts: ExpertsModule) -> FfnSpec:
    """The formula of a family's experts. Raises UnsupportedModelError with the reason when there is none for it."""
    _check_parts(experts)
    for spec in _candidates(experts):
        if _same_on_grid(experts, spec):
            return spec
    raise UnsupportedModelError(
        f"{type(experts.module).__name__} computes an activation that none of {', '.join(_PLAIN)} and clamped_swiglu "
        "reproduces"
    )


def _check_parts(experts: ExpertsModule) -> None:
    kind = type(experts.module).__name__
    if experts.post_norm:
        raise UnsupportedModelError(f"{kind} normalises each expert's output (has_post_expert_norm), not served yet")
    names = {name for name, _ in experts.module.named_parameters()}
    if names != set(experts.parameters):
        raise UnsupportedModelError(
            f"{kind} has the parameters {', '.join(sorted(names))}; "
            f"only experts made of {', '.join(experts.parameters)} can be served"
        )


def _candidates(experts: ExpertsModule) -> Iterable[FfnSpec]:
    for activation in _PLAIN:
        yield FfnSpec(activation=activation, gated=experts.gated, bias=experts.biased)  # type: ignore[arg-type]
    limit = _number(experts.module, "limit", "swiglu_limit")
    alpha = _number(experts.module, "alpha", "swiglu_alpha")
    if experts.gated and limit is not None and limit > 0 and alpha is not None:
        yield FfnSpec(activation="clamped_swiglu", gated=True, bias=experts.biased, limit=limit, alpha=alpha)


def _number(module: nn.Module, *names: str) -> float | None:
    found = [getattr(module, name, None) for name in names]
    return next((float(value) for value in found if isinstance(value, (int, float))), None)


def _same_on_grid(experts: ExpertsModule, spec: FfnSpec) -> bool:
    """Whether the module's activation equals the formula's for gate and up values far beyond any clamp."""
    reach = max(12.0, 3 * (spec.limit or 0))
    steps = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    projected = torch.cartesian_prod(steps, steps) if experts.gated else steps[:, None]
    want = _formula(projected, spec)
    got = _activate(experts, projected).to(torch.float64)
    return bool(torch.allclose(got, want, rtol=_GRID_TOLERANCE, atol=_GRID_TOLERANCE))


def _formula(projected: Tensor, spec: FfnSpec) -> Tensor:
    """The known activation of [n, 2] gate and up values (or [n, 1]), through weights that change nothing."""
    width = projected.shape[1]
    weights = ExpertWeights(
        up=torch.eye(width, dtype=projected.dtype),
        down=torch.ones(width, 1, dtype=projected.dtype),
    )
    plain = FfnSpec(spec.activation, spec.gated, False, spec.limit, spec.alpha)
    return ffn(projected, weights, plain)[:, :1]


def _activate(experts: ExpertsModule, projected: Tensor) -> Tensor:
    """The module's own activation; one gate and one up value lie the same way concatenated or interleaved."""
    module: Any = experts.module
    with torch.no_grad():
        if experts.gated and hasattr(module, "_apply_gate"):
            result: Tensor = module._apply_gate(projected)
        elif experts.gated:
            result = module.act_fn(projected[:, :1]) * projected[:, 1:]
        else:
            result = module.act_fn(projected)
    return result


def standard_weights(experts: ExpertsModule, fused: Mapping[str, Tensor], expert: int) -> ExpertWeights:
    """One expert out of the fused parameters [experts, ...], in the standard layout, as tensors of its own or views."""
    up, down, *biases = (fused[name][expert] for name in experts.parameters)
    if experts.transposed:
        up, down = up.T, down.T
    if experts.gated and not experts.concatenated:
        up = torch.cat([up[0::2], up[1::2]])
        biases = [torch.cat([biases[0][0::2], biases[0][1::2]]), *biases[1:]]
    return ExpertWeights(up.contiguous(), down.contiguous(), *(bias.contiguous() for bias in biases))


def prove(experts: ExpertsModule, spec: FfnSpec, fused: Mapping[str, Tensor], expert: int) -> None:
    """Sends probe rows through one expert, by the module's own forward and by the formula, and compares.

    Raises UnsupportedModelError when they differ. Works in blocks, so that the expert is never held in float64 whole.
    """
    weights = standard_weights(experts, fused, expert)
    rows = probe_rows(weights.hidden, experts.layer)
    want = _own_forward(experts, {name: fused[name][expert : expert + 1] for name in experts.parameters}, rows)
    got = run_in_blocks(rows, weights, spec, backend="reference")
    error = torch.linalg.vector_norm(got - want.to(torch.float64), dim=1)
    allowed = _PROOF_TOLERANCE * torch.linalg.vector_norm(got, dim=1) + 1e-12
    if not bool((error <= allowed).all()):
        raise UnsupportedModelError(
            f"{type(experts.module).__name__} of layer {experts.layer} does not compute what its parts say: "
            f"{spec} differs from its own forward by {float(error.max()):.3g}"
        )


def _own_forward(experts: ExpertsModule, parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """The family's forward [n, hidden] of a module that holds a single expert, in float32."""
    module: Any = copy.copy(experts.module)
    module._parameters = {
        name: nn.Parameter(tensor.to(torch.float32), requires_grad=False) for name, tensor in parameters.items()
    }
    module.num_experts = 1
    with torch.no_grad():
        if not experts.decorated:
            return module(rows)  # type: ignore[no-any-return]
        module.config = copy.deepcopy(module.config)
        module.config._experts_implementation = "eager"
        index = torch.zeros(len(rows), 1, dtype=torch.int64)
        return module(rows, index, torch.ones(len(rows), 1))  # type: ignore[no-any-return]


def run_in_blocks(rows: Tensor, weights: ExpertWeights, spec: FfnSpec, backend: str = AUTO) -> Tensor:
    """The formula in float64 over blocks of inner columns, added up: rows [n, hidden] -> [n, hidden].

    The activation works on each inner column alone, so the blocks' sum is the whole.
    """
    wide = rows.to(torch.float64)
    total = torch.zeros(len(rows), weights.hidden, dtype=torch.float64)
    columns = max(1, _BLOCK_BYTES // (8 * weights.hidden))
    for start in range(0, weights.inner, columns):
        total += ffn(wide, _block(weights, spec, start, min(start + columns, weights.inner)), spec, backend=backend)
    return total if weights.down_bias is None else total + weights.down_bias.to(torch.float64)


def _block(weights: ExpertWeights, spec: FfnSpec, start: int, end: int) -> ExpertWeights:
    """The part of an expert that makes inner columns start..end, in float64 and without the last bias."""
    spans = [slice(start, end)]
    if spec.gated:
        spans.append(slice(weights.inner + start, weights.inner + end))
    up = torch.cat([weights.up[span] for span in spans]).to(torch.float64)
    down = weights.down[:, start:end].to(torch.float64)
    bias = weights.up_bias
    return ExpertWeights(
        up, down, None if bias is None else torch.cat([bias[span] for span in spans]).to(torch.float64)
    )
