"""Makes a package with 8-bit experts out of one with 16-bit (or wider) experts.

Every matrix becomes bytes with a scale and an offset per output channel, or per group of its inputs
(moe.kernels.quantised). Each expert of each
layer is then compared with what it was: both send the same rows through, and the outputs' relative error decides
whether it stays as it was. The rows are those that the expert meets in the calibration text (moe.models.calibration),
or fixed random ones where the package can't be run on text. Probes are computed anew from the bytes, so that a
service's check is as tight as before. The same package gives the same bytes on the same kind of processor; everything
else in it is copied.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.kernels.ffn.reference import activation
from moe.kernels.group_ffn import AUTO, W8A8, QuantisedExpert, backends
from moe.kernels.group_ffn.weights import plain
from moe.kernels.quantised import check_group_size, round_rows
from moe.kernels.quantised import quantise as quantised
from moe.models.calibration import CalibrationRun, LocalExperts, NoCalibrationError, Seen
from moe.models.convert.output import check_target, partial_directory
from moe.models.errors import ConversionError
from moe.models.formula import run_in_blocks
from moe.models.manifest import (
    MANIFEST_NAME,
    PROBES_NAME,
    FileFacts,
    Manifest,
    expert_file,
    expert_tensor,
    schema_of,
)
from moe.models.package import MATRICES, Package, expert_tensor_specs, sha256_of_file
from moe.models.probe import probe_rows, sketch
from moe.models.progress import Meter, Progress, silent
from moe.models.quantisation import ExpertErrors, Perplexities, Quantisation
from moe.models.safetensors_stream import DTYPE_NAMES, SafetensorsWriter
from torch import Tensor

DEFAULT_LIMIT = 0.03
_ROWS = 64
"""Random rows that errors are measured on; their mean is then known to a few percent of itself."""


@dataclass(frozen=True)
class QuantiseReport:
    """path: of the new package. bytes_before, bytes_after: of the experts' files. uncalibrated: why errors are over
    random rows and there are no perplexities; None when they are over text."""

    path: Path
    quantisation: Quantisation
    bytes_before: int
    bytes_after: int
    uncalibrated: str | None


def quantise_package(
    package: Package,
    out: Path,
    *,
    name: str | None = None,
    limit: float = DEFAULT_LIMIT,
    smallest: int = 0,
    group_size: int | None = None,
    replace_existing: bool = False,
    progress: Progress = silent,
) -> QuantiseReport:
    """Writes the quantised package to `out`, in one step or not at all. name: of the new one, by default the old one's.

    limit: mean relative error of an expert's outputs above which it stays in the package's dtype. smallest: bytes of an
    expert in a layer below which it stays, too. group_size: inputs of an output channel that share a scale and an
    offset, None for all of them.
    Raises ConversionError (its kinds for the target and the disk), PackageError for a package whose files are not what
    its manifest says.
    """
    manifest = package.manifest
    if manifest.quantisation is not None:
        raise ConversionError(f"{package.path} is quantised already; quantise the package that it was made of")
    if not limit > 0:
        raise ConversionError(f"limit: must be above 0, got {limit}")
    if smallest < 0:
        raise ConversionError(f"smallest: must not be negative, got {smallest}")
    try:
        check_group_size(group_size)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    check_target(out, replace=replace_existing)
    run, seen, before, why = _calibrated(package)
    # Bytes in, and out at most as many and a header's growth.
    meter = Meter(progress, manifest.total_bytes)
    with partial_directory(out, manifest.total_bytes, replace=replace_existing) as root:
        making = _Making(package, root, Limits(limit, smallest), group_size, seen, meter.add)
        made = making.run(name or manifest.name)
        (root / MANIFEST_NAME).write_bytes(made.to_bytes())
        if run is not None and made.quantisation is not None:
            perplexity = _perplexities(run, before, Package(root, made, ""))
            made = replace(made, quantisation=replace(made.quantisation, perplexity=perplexity))
            (root / MANIFEST_NAME).write_bytes(made.to_bytes())
    meter.finish("done")
    assert made.quantisation is not None
    return QuantiseReport(out, made.quantisation, _expert_bytes(manifest), _expert_bytes(made), why)


def _expert_bytes(manifest: Manifest) -> int:
    return sum(manifest.files[expert_file(expert)].size for expert in range(manifest.expert_count))


def _calibrated(package: Package) -> tuple[CalibrationRun | None, Seen, float, str | None]:
    """The run, what the experts saw in it and its perplexity; or nothing and why."""
    seen = Seen()
    try:
        run = CalibrationRun(package)
    except NoCalibrationError as error:
        return None, seen, 0.0, str(error)
    with torch.inference_mode():
        return run, seen, run.perplexity(LocalExperts(package, _backend(), seen)), None


def _backend() -> str:
    """The first exact one that can run: not the fastest of the moment, whose bits may be another's."""
    return backends.resolve(AUTO)


@torch.inference_mode()
def _perplexities(run: CalibrationRun, before: float, made: Package) -> Perplexities:
    after = run.perplexity(LocalExperts(made, _backend()))
    rounded = run.perplexity(LocalExperts(made, W8A8)) if backends.why_not(W8A8) is None else None
    return Perplexities(run.tokens, before, after, rounded)


@dataclass(frozen=True)
class Limits:
    """Above or below which an expert stays: error of its outputs, bytes in a layer."""

    error: float
    smallest: int


_NOTHING = ExpertErrors(0.0, 0.0, 0.0, 0.0)


class _Making:
    """One run of writing a package below `root`. report is told bytes done and a label."""

    def __init__(
        self,
        package: Package,
        root: Path,
        limits: Limits,
        group_size: int | None,
        seen: Seen,
        report: Callable[[int, str], None],
    ) -> None:
        self._package, self._manifest, self._root = package, package.manifest, root
        self._limits, self._group_size, self._seen, self._report = limits, group_size, seen, report
        self._errors: dict[tuple[int, int], ExpertErrors] = {}
        self._kept: set[tuple[int, int]] = set()
        self._sketches: dict[tuple[int, int], list[float]] = {}

    @torch.inference_mode()
    def run(self, name: str) -> Manifest:
        """Writes all files but the manifest, which it returns."""
        files = self._copy_others()
        (self._root / expert_file(0)).parent.mkdir()
        for expert in range(self._manifest.expert_count):
            files[expert_file(expert)] = self._write_expert(expert)
        files[PROBES_NAME] = self._write_probes()
        return replace(self._described(), name=name, files=files)

    def _copy_others(self) -> dict[str, FileFacts]:
        """Copies what is neither an expert nor a probe, checked on the way."""
        mine = {PROBES_NAME, *(expert_file(expert) for expert in range(self._manifest.expert_count))}
        others = {path: facts for path, facts in self._manifest.files.items() if path not in mine}
        for path, facts in others.items():
            self._package.check_file(path, sha256=True)
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._package.file(path), self._root / path)
            self._report(facts.size, path)
        return others

    def _write_expert(self, expert: int) -> FileFacts:
        self._package.check_file(expert_file(expert), sha256=True)
        tensors: dict[str, Tensor] = {}
        for layer, weights in self._package.expert_weights(expert).items():
            assert isinstance(weights, ExpertWeights)
            tensors |= self._chosen(layer, expert, weights)
        # What is kept is only known of this expert so far; its own file's layout needs no more.
        specs = expert_tensor_specs(self._described(), expert, DTYPE_NAMES[self._manifest.torch_dtype])
        writer = SafetensorsWriter(self._root / expert_file(expert), specs)
        for name in specs:
            writer.write(name, tensors[name])
        self._report(self._manifest.files[expert_file(expert)].size, f"expert {expert}")
        return FileFacts(writer.close(), writer.size)

    def _chosen(self, layer: int, expert: int, weights: ExpertWeights) -> dict[str, Tensor]:
        """The tensors of an expert in a layer as they will lie in its file."""
        try:
            up, down = (quantised(getattr(weights, part), self._group_size) for part in MATRICES)
            small = QuantisedExpert(up, down, weights.dtype, weights.up_bias, weights.down_bias)
        except ValueError as error:
            raise ConversionError(f"expert {expert} of layer {layer}: {error}") from error
        rows = self._seen.rows(layer, expert)
        if rows is None:
            rows = random_rows(weights.hidden, layer)
        errors = expert_errors(weights, small, self._manifest.ffn, rows)
        self._errors[layer, expert] = errors
        size = sum(getattr(weights, part).nbytes for part in MATRICES)
        kept = errors.mean > self._limits.error or size < self._limits.smallest
        if kept:
            self._kept.add((layer, expert))
        wide = weights if kept else plain(small, torch.float64)
        self._sketches[layer, expert] = sketch(
            run_in_blocks(probe_rows(self._manifest.experts.hidden, layer), wide, self._manifest.ffn)
        )
        parts = {part: getattr(weights, part) for part in self._manifest.experts.shapes()}
        if not kept:
            for part in MATRICES:
                matrix = getattr(small, part)
                parts |= {part: matrix.q, f"{part}_scale": matrix.scale, f"{part}_offset": matrix.offset}
        return {expert_tensor(layer, part): tensor for part, tensor in parts.items()}

    def _described(self) -> Manifest:
        """The manifest as far as it is known."""
        quantisation = self._quantisation()
        return replace(self._manifest, schema=schema_of(quantisation), quantisation=quantisation)

    def _quantisation(self) -> Quantisation:
        layers = self._manifest.moe_layers
        return Quantisation(
            self._limits.error,
            self._limits.smallest,
            {
                layer: tuple(self._errors.get((layer, expert), _NOTHING) for expert in range(count))
                for layer, count in layers.items()
            },
            {layer: tuple(e for e in range(count) if (layer, e) in self._kept) for layer, count in layers.items()},
            None,
            self._group_size,
        )

    def _write_probes(self) -> FileFacts:
        content = {
            str(layer): [self._sketches[layer, expert] for expert in range(count)]
            for layer, count in self._manifest.moe_layers.items()
        }
        path = self._root / PROBES_NAME
        path.write_text(json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n", encoding="ascii")
        self._report(self._manifest.files[PROBES_NAME].size, PROBES_NAME)
        return FileFacts(sha256_of_file(path), path.stat().st_size)


def expert_errors(before: ExpertWeights, after: QuantisedExpert, spec: FfnSpec, rows: Tensor) -> ExpertErrors:
    """How far `after` is off on rows [n, hidden], in float32: |after - before| / |before| of each row's output.

    Rounded to six digits, so that a manifest's bytes don't depend on the last places of a machine's products.
    """
    wide, near = _widened(before), plain(after, torch.float32)
    want = ffn(rows, wide, spec, backend="torch")
    norm = want.norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)

    def relative(output: Tensor) -> Tensor:
        distance: Tensor = (output - want).norm(dim=1) / norm
        return distance

    got, rounded = relative(ffn(rows, near, spec, backend="torch")), relative(_with_rounded_rows(rows, near, spec))
    off = sum(float((getattr(near, part) - getattr(wide, part)).square().sum()) for part in MATRICES)
    size = sum(float(getattr(wide, part).square().sum()) for part in MATRICES)
    weight = sqrt(off / size) if size else 0.0
    numbers = (float(got.mean()), float(got.max()), weight, float(rounded.mean()))
    return ExpertErrors(*(float(f"{number:.5e}") for number in numbers))


def _with_rounded_rows(rows: Tensor, weights: ExpertWeights, spec: FfnSpec) -> Tensor:
    """The formula in float32 with what goes into both products rounded to bytes."""

    def rounded(values: Tensor) -> Tensor:
        whole, steps = round_rows(values)
        product: Tensor = whole * steps
        return product

    hidden = torch.nn.functional.linear(rounded(rows), weights.up, weights.up_bias)
    output: Tensor = torch.nn.functional.linear(rounded(activation(hidden, spec)), weights.down, weights.down_bias)
    return output


def _widened(weights: ExpertWeights) -> ExpertWeights:
    biases = (None if bias is None else bias.float() for bias in (weights.up_bias, weights.down_bias))
    return ExpertWeights(weights.up.float(), weights.down.float(), *biases)


def random_rows(hidden: int, layer: int) -> Tensor:
    """Of standard deviation 1, the same on every machine: SHAKE-256's bits, normal by adding twelve numbers up."""
    raw = hashlib.shake_256(f"moe.quantise {layer}".encode()).digest(12 * _ROWS * hidden)
    uniform = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(12, _ROWS, hidden).float()
    return (uniform.sum(dim=0) - 12 * 127.5) / 256.0
