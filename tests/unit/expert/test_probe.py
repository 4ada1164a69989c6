"""The probe says yes to the right weights and no to any others."""

from dataclasses import replace

import pytest
from moe.expert.packing import Computation, pack
from moe.expert.probe import check_probes
from moe.expert.weights import load_group, open_package
from moe.kernels.ffn import FfnSpec
from moe.models.quantise import quantise_package
from moe.runtime.errors import StartupError
from support.tiny_package import write_package

SPECS = {
    "silu": FfnSpec("silu", gated=True, bias=False),
    "ungated relu2": FfnSpec("relu2", gated=False, bias=False),
    "clamped_swiglu": FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702),
}


COMPUTATIONS = {
    "auto": Computation(),
    "native": Computation("native"),
    "torch": Computation("torch"),
    "torch in tiles": Computation("torch", deterministic=True),
}


def ignore(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("computation", COMPUTATIONS.values(), ids=COMPUTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_right_weights_pass_in_every_dtype(tmp_path, spec, dtype, computation):
    package = open_package(write_package(tmp_path / "tiny", spec=spec, dtype=dtype))
    check_probes(package, pack(load_group(package, [0, 3]), computation), ignore)


def test_every_layer_and_expert_is_probed(package, group):
    seen = []
    check_probes(package, group, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 7) for done in range(1, 8)]


def test_swapped_experts_are_refused_by_file_and_expert(package, mapped):
    layer = dict(mapped.layers[2])
    layer[0], layer[1] = layer[1], layer[0]
    swapped = replace(mapped, layers={**mapped.layers, 2: layer})
    with pytest.raises(StartupError, match=r"expert-00000\.safetensors: expert 0 of layer 2 answers"):
        check_probes(package, pack(swapped, Computation()), ignore)


@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("kernel", ["native", "native_w8a8"])
def test_swapped_experts_of_bytes_are_refused(tmp_path, kernel, group_size):
    source = open_package(write_package(tmp_path / "tiny", dtype="bfloat16"))
    package = open_package(quantise_package(source, tmp_path / "small", limit=1, group_size=group_size).path)
    mapped = load_group(package, [0, 1])
    check_probes(package, pack(mapped, Computation(kernel)), ignore)
    swapped = replace(mapped, layers={2: {0: mapped.layers[2][1], 1: mapped.layers[2][0]}})
    with pytest.raises(StartupError, match=r"expert-00000\.safetensors: expert 0 of layer 2 answers"):
        check_probes(package, pack(swapped, Computation(kernel)), ignore)


def test_a_mis_scaled_weight_is_refused(package, mapped):
    held = mapped.layers[0][3]
    scaled = replace(mapped, layers={0: {3: replace(held, down=held.down * 1.01)}})
    with pytest.raises(StartupError, match="expert 3 of layer 0 answers"):
        check_probes(package, pack(scaled, Computation()), ignore)


def test_gate_and_up_exchanged_are_refused(package, mapped):
    held = mapped.layers[0][1]
    turned = replace(mapped, layers={0: {1: replace(held, up=held.up.roll(held.inner, dims=0))}})
    with pytest.raises(StartupError, match="expert 1 of layer 0 answers"):
        check_probes(package, pack(turned, Computation()), ignore)
