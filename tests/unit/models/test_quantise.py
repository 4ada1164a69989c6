"""Quantising a package: its bytes, its errors, who stays, and that it loads, proves itself and answers."""

import json

import pytest
import torch
from moe.expert.compute import compute
from moe.expert.packing import Computation, pack
from moe.expert.probe import check_probes
from moe.expert.weights import load_group, open_package
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.kernels.group_ffn import QuantisedExpert
from moe.kernels.group_ffn.weights import plain
from moe.models.calibration import calibration_rows
from moe.models.convert import convert_checkpoint
from moe.models.errors import ConversionError, OutputError, PackageError, PackageVersionError
from moe.models.manifest import MANIFEST_NAME
from moe.models.package import Package
from moe.models.quantise import quantise_package
from moe.models.verify import verify_package
from moe.runtime.errors import StartupError
from support.expert_double import work
from support.families import load_reference, write_checkpoint
from support.ffn_cases import rows as draw_rows
from support.tiny_package import HIDDEN, MOE_LAYERS, expert_weights, write_package
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, PreTrainedTokenizerFast

BIASED = FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702)
SILU = FfnSpec("silu", gated=True, bias=False)
CASES = {"silu": (SILU, None), "biased": (BIASED, None), "in groups": (SILU, 16), "biased, in groups": (BIASED, 16)}
"""Formula and group size; 24 and 10 inputs are a group and a half, and one short group."""


@pytest.fixture(params=CASES.values(), ids=CASES)
def made(request, tmp_path):
    spec, group_size = request.param
    source = Package.open(write_package(tmp_path / "tiny", spec=spec, dtype="bfloat16"))
    return source, quantise_package(source, tmp_path / "small", name="small", limit=0.05, group_size=group_size)


def test_it_is_a_sound_package_of_its_own_schema_and_name(made):
    _, report = made
    assert verify_package(report.path).problems == ()
    manifest = Package.open(report.path, verify="sha256").manifest
    schema = "moe.package/v2" if report.quantisation.group_size is None else "moe.package/v3"
    assert (manifest.name, manifest.schema, manifest.dtype) == ("small", schema, "bfloat16")
    assert manifest.quantisation == report.quantisation


def test_scales_lie_in_the_files_for_each_group_of_inputs(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny", dtype="bfloat16"))
    small = Package.open(quantise_package(source, tmp_path / "small", group_size=16).path)
    held, given = small.expert_weights(1)[2], expert_weights(2, 1, dtype="bfloat16")
    assert (held.up.scale.shape, held.down.offset.shape) == ((len(given.up), 2), (HIDDEN, 1))
    for matrix, original in ((held.up, given.up), (held.down, given.down)):
        for group, columns in enumerate((slice(0, 16), slice(16, None))[: matrix.scale.shape[1]]):
            part = original[:, columns].double()
            error = (matrix.dequantised(torch.float64)[:, columns] - part).abs()
            # Half a step of the group's own range.
            step = (part.amax(dim=1) - part.amin(dim=1)) / 255
            assert (error <= 0.501 * step[:, None] + 1e-9).all()
            assert torch.allclose(matrix.scale[:, group].double(), step)


def test_smaller_groups_have_smaller_errors(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny", dtype="bfloat16"))
    reports = [quantise_package(source, tmp_path / str(size), group_size=size) for size in (None, 16)]
    whole, grouped = (
        [each.weight for errors in report.quantisation.errors.values() for each in errors] for report in reports
    )
    assert all(after < before for before, after in zip(whole, grouped, strict=True))
    assert reports[1].bytes_after > reports[0].bytes_after


def test_the_errors_are_what_comparing_each_expert_with_the_original_gives(made):
    source, report = made
    small = Package.open(report.path)
    rows = draw_rows(400, HIDDEN, torch.float32, seed=9)
    before = pack(load_group(source, range(4), "float32"), Computation("torch"))
    after = pack(load_group(small, range(4), "float32"), Computation("torch"))
    for layer, count in MOE_LAYERS.items():
        for expert in range(count):
            items = [work(rows, [(row, expert, 1.0) for row in range(400)], layer=layer)]
            left, right = (compute(items, packed).partials[0] for packed in (before, after))
            error = ((right - left).norm(dim=1) / left.norm(dim=1)).mean().item()
            # Two samples of a mean, of 64 and 400 rows.
            assert error == pytest.approx(report.quantisation.errors[layer][expert].mean, rel=0.4)


@pytest.mark.parametrize("kernel", ["native", "native_w8a8", "torch"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_group_of_it_answers_its_probes(made, kernel, dtype):
    package = open_package(made[1].path)
    seen = []
    packed = pack(load_group(package, range(4), dtype), Computation(kernel))
    check_probes(package, packed, lambda done, total: seen.append(total))
    assert len(seen) == sum(MOE_LAYERS.values())


def test_rounding_rows_is_refused_where_no_expert_has_bytes(made):
    source, _ = made
    with pytest.raises(StartupError, match="native_w8a8 rounds the rows of 8-bit experts, and none of these is"):
        pack(load_group(source, range(4)), Computation("native_w8a8"))


def test_an_expert_above_the_limit_stays_as_it_was_and_is_named(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny", dtype="bfloat16"))
    every = [
        each.mean
        for errors in quantise_package(source, tmp_path / "all", limit=1.0).quantisation.errors.values()
        for each in errors
    ]
    limit = sorted(every)[3]
    report = quantise_package(source, tmp_path / "some", limit=limit)
    kept = [(layer, expert) for layer, experts in report.quantisation.kept.items() for expert in experts]
    assert len(kept) == sum(error > limit for error in every) == 3
    small = Package.open(report.path)
    for layer, count in MOE_LAYERS.items():
        for expert in range(count):
            held = small.expert_weights(expert)[layer]
            assert isinstance(held, ExpertWeights if (layer, expert) in kept else QuantisedExpert)
            if isinstance(held, ExpertWeights):
                assert torch.equal(held.up, expert_weights(layer, expert, dtype="bfloat16").up)
    package = open_package(report.path)
    check_probes(package, pack(load_group(package, range(4)), Computation()), lambda done, total: None)


def test_the_same_package_gives_the_same_bytes(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny", dtype="bfloat16"))
    paths = [quantise_package(source, tmp_path / name).path for name in ("one", "two")]
    files = [{str(f.relative_to(p)): f.read_bytes() for f in p.rglob("*") if f.is_file()} for p in paths]
    assert files[0] == files[1]


def test_progress_ends_at_the_whole(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))
    seen = []
    quantise_package(source, tmp_path / "small", progress=lambda done, total, label: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == source.manifest.total_bytes


def test_interrupted_it_leaves_nothing(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))

    def interrupt(done: int, total: int, label: str) -> None:
        if label == "expert 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise_package(source, tmp_path / "small", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_target_that_is_there_is_refused_and_replaced_on_demand(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))
    quantise_package(source, tmp_path / "small")
    with pytest.raises(OutputError, match="exists already"):
        quantise_package(source, tmp_path / "small")
    assert quantise_package(source, tmp_path / "small", replace_existing=True).path.is_dir()


def test_what_can_not_be_quantised_is_refused(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))
    report = quantise_package(source, tmp_path / "small")
    with pytest.raises(ConversionError, match="is quantised already"):
        quantise_package(Package.open(report.path), tmp_path / "smaller")
    with pytest.raises(ConversionError, match="limit: must be above 0, got 0"):
        quantise_package(source, tmp_path / "other", limit=0)
    with pytest.raises(ConversionError, match="group_size: got 24, want a multiple of 16"):
        quantise_package(source, tmp_path / "other", group_size=24)
    poisoned = Package.open(write_package(tmp_path / "poisoned", poison=(2, 1, "down")))
    with pytest.raises(ConversionError, match="expert 1 of layer 2: matrix: holds values that are NaN"):
        quantise_package(poisoned, tmp_path / "other")


def test_an_expert_below_the_smallest_size_stays_as_it_was(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny", dtype="bfloat16"))
    size = sum(getattr(expert_weights(0, 0, dtype="bfloat16"), part).nbytes for part in ("up", "down"))
    kept = quantise_package(source, tmp_path / "none", smallest=size + 1).quantisation.kept
    assert kept == {layer: tuple(range(count)) for layer, count in MOE_LAYERS.items()}
    assert quantise_package(source, tmp_path / "all", smallest=size).quantisation.kept == {0: (), 2: ()}
    with pytest.raises(ConversionError, match="smallest: must not be negative, got -1"):
        quantise_package(source, tmp_path / "other", smallest=-1)


def test_without_a_tokenizer_errors_are_over_random_rows_and_the_report_says_so(made):
    assert made[1].quantisation.perplexity is None
    assert made[1].uncalibrated == "the package has no tokenizer"


def test_a_weights_error_is_that_of_its_steps(made):
    for errors in made[1].quantisation.errors.values():
        # 256 even steps over some four standard deviations, each off by a step / sqrt(12) at random.
        assert all(0.002 < each.weight < 0.01 for each in errors)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A checkpoint with a tokenizer of characters, its package, and that quantised."""
    place = tmp_path_factory.mktemp("spoken")
    checkpoint = write_checkpoint("mixtral", place / "package-checkpoint")
    config = AutoConfig.from_pretrained(checkpoint)
    vocabulary = {chr(code): code % config.vocab_size for code in range(10, 127)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="~"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="~").save_pretrained(checkpoint)
    source = Package.open(convert_checkpoint(checkpoint, place / "package"))
    return checkpoint, source, quantise_package(source, place / "small")


def test_with_a_tokenizer_the_perplexity_is_told_before_and_after(spoken):
    checkpoint, source, report = spoken
    model, rows = load_reference(checkpoint), calibration_rows(source)
    with torch.inference_mode():
        losses = [cross_entropy(model(row[None]).logits[0, :-1], row[1:], reduction="none") for row in rows]
    found = report.quantisation.perplexity
    assert report.uncalibrated is None
    assert found.tokens == sum(map(len, losses))
    assert found.before == pytest.approx(torch.cat(losses).mean().exp().item(), rel=1e-4)
    assert found.after == pytest.approx(found.before, rel=0.01)
    assert found.after != found.before


def test_with_a_tokenizer_errors_are_over_rows_that_the_expert_meets(spoken):
    checkpoint, source, report = spoken
    seen = {}
    model = load_reference(checkpoint)
    for layer, block in enumerate(model.model.layers):
        block.mlp.experts.register_forward_pre_hook(
            lambda _, given, layer=layer: seen.setdefault(layer, []).append((given[0].flatten(0, -2), given[1]))
        )
    with torch.inference_mode():
        for row in calibration_rows(source):
            model(row[None])
    small = Package.open(report.path)
    for layer, expert in ((0, 0), (1, 2)):
        hidden, index = (torch.cat(parts) for parts in zip(*seen[layer], strict=True))
        mine = hidden[(index == expert).any(dim=1)][:64]
        outputs = [
            ffn(mine, plain(package.expert_weights(expert)[layer], torch.float32), source.manifest.ffn)
            for package in (source, small)
        ]
        error = ((outputs[1] - outputs[0]).norm(dim=1) / outputs[0].norm(dim=1)).mean().item()
        assert len(mine) >= 8
        assert report.quantisation.errors[layer][expert].mean == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": 0}, "quantisation.limit: must be a number above 0"),
        ({"kept": {"0": [4], "2": []}}, "quantisation.kept.0: must be a list of expert ids below 4"),
        ({"kept": {"0": [1, 0], "2": []}}, "quantisation.kept.0: must be a list of expert ids below 4, ascending"),
        ({"errors": {"0": [[0.1] * 4] * 4, "2": [[0.1]] * 3}}, "quantisation.errors.2: each must be 4 numbers"),
        ({"smallest": -1}, "quantisation.smallest: must be a whole number"),
        (
            {"perplexity": {"tokens": 9, "before": 2.0, "after": None, "rounded_rows": None}},
            "quantisation.perplexity: before and after must be numbers from 1 on",
        ),
        ({"more": 1}, "quantisation.more: is not a known field"),
    ],
)
def test_a_manifest_that_says_nonsense_of_it_is_refused(tmp_path, change, message):
    source = Package.open(write_package(tmp_path / "tiny"))
    path = quantise_package(source, tmp_path / "small").path / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    content["quantisation"] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(PackageError, match=message.replace(".", r"\.")):
        Package.open(path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": 24}, "quantisation.group_size: got 24, want a multiple of 16"),
        ({"group_size": 0}, "quantisation.group_size: must be a whole number"),
        ({"group_size": None}, "quantisation.group_size: must be a whole number"),
        ({"group_size": "16"}, "quantisation.group_size: must be a whole number"),
    ],
)
def test_a_manifest_with_a_group_size_that_can_not_be_is_refused(tmp_path, change, message):
    source = Package.open(write_package(tmp_path / "tiny"))
    path = quantise_package(source, tmp_path / "small", group_size=16).path / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    assert content["quantisation"]["group_size"] == 16
    path.write_text(json.dumps(content | {"quantisation": content["quantisation"] | change}))
    with pytest.raises(PackageError, match=message.replace(".", r"\.")):
        Package.open(path.parent)


def test_a_group_size_belongs_to_the_third_schema_alone(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))
    path = quantise_package(source, tmp_path / "small", group_size=16).path / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(content | {"schema": "moe.package/v2"}))
    with pytest.raises(PackageError, match=r"quantisation\.group_size: is not a known field"):
        Package.open(path.parent)
    del content["quantisation"]["group_size"]
    path.write_text(json.dumps(content))
    with pytest.raises(PackageError, match=r"quantisation\.group_size: is missing"):
        Package.open(path.parent)


def test_scales_of_another_group_size_are_refused_by_their_name(tmp_path):
    source = Package.open(write_package(tmp_path / "tiny"))
    path = quantise_package(source, tmp_path / "small", group_size=16).path / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    content["quantisation"]["group_size"] = 32
    path.write_text(json.dumps(content))
    with pytest.raises(PackageError, match=r"tensor 'layers\.0\.up_scale' is .* the manifest says"):
        Package.open(path.parent).expert_weights(0)


def test_a_manifest_of_the_first_schema_has_none(tmp_path):
    path = write_package(tmp_path / "tiny") / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    assert "quantisation" not in content
    path.write_text(json.dumps(content | {"quantisation": None}))
    with pytest.raises(PackageError, match="quantisation: is not a known field"):
        Package.open(path.parent)
    path.write_text(json.dumps(content | {"schema": "moe.package/v4"}))
    with pytest.raises(PackageVersionError):
        Package.open(path.parent)
