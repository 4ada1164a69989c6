"""Proves, before a process says READY, that it computes what the manifest says: every layer, every expert.

The converter stored sketches of float64 answers to fixed rows; here the same rows go through the very packed weights
and kernel that will serve. A swapped, shifted or mis-scaled expert does not pass.
"""

import torch
from moe.expert.packing import PackedWeights
from moe.expert.weights import Progress
from moe.kernels.group_ffn import W8A8
from moe.models.errors import PackageError
from moe.models.manifest import expert_file
from moe.models.package import Package
from moe.models.probe import PROBE_ROWS, ProbeExpectation
from moe.runtime.errors import StartupError


def check_probes(package: Package, weights: PackedWeights, progress: Progress) -> None:
    """Probes all (layer, expert) pairs of the group; progress(done, all) is called after each.

    Raises StartupError naming file, layer and expert of the first wrong answer.
    """
    pairs = weights.pairs
    for done, (layer, expert) in enumerate(pairs, start=1):
        _check(package, weights, layer, expert)
        progress(done, len(pairs))


@torch.inference_mode()
def _check(package: Package, weights: PackedWeights, layer: int, expert: int) -> None:
    expected = _expectation(package, layer, expert)
    rows = expected.rows.to(weights.dtype)
    # One slot a row, of weight 1: the partial is the expert's own output.
    places, chosen = torch.arange(len(rows), dtype=torch.int32), torch.full((len(rows),), expert, dtype=torch.int32)
    output = weights.layers[layer](rows, places, chosen, torch.ones(len(rows)), weights.dtype)
    if expected.matches(output, rounded_rows=weights.kernel == W8A8):
        return
    file = package.file(expert_file(expert))
    raise StartupError(
        f"file {file}: expert {expert} of layer {layer} answers the {PROBE_ROWS} probe rows otherwise than the "
        "manifest says; the file belongs to another model or conversion. Convert the model again"
    )


def _expectation(package: Package, layer: int, expert: int) -> ProbeExpectation:
    try:
        return package.probe(layer, expert)
    except PackageError as error:
        raise StartupError(str(error)) from error
