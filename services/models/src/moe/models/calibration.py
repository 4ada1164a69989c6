"""What a package makes of the calibration text: its perplexity, and the rows that its experts get to see.

Experts are compared on rows that they really meet, and a quantised package with the one that it was made of on the same
tokens. All in float32, whatever the package's dtype: two runs in bfloat16 differ by half a percent from its roundings
alone, which hides what bytes do. One step runs all tokens; each layer's experts are packed when they are asked and
dropped again, so that memory holds one layer's. The text (calibration.txt) is our own but for an entry of the CIA World
Factbook and a passage of the King James Bible. transformers is imported when a model is run.
"""

from dataclasses import dataclass, field
from importlib import resources
from math import exp

import torch
from moe.kernels.ffn import ExpertWeights
from moe.kernels.group_ffn import Expert, PackedGroup, QuantisedExpert
from moe.models.contract import Experts, PackedBatch, Segment
from moe.models.errors import ModelsError
from moe.models.package import Package
from moe.models.text import TextError, Tokenizer
from torch import Tensor
from torch.nn import functional as F

ROW_TOKENS = 256
"""Tokens of each of the text's parts; the logits of all of them are in memory at once."""

SEEN_ROWS = 64
"""Rows that are kept for each expert."""

FEWEST_ROWS = 8
"""An expert that was chosen for fewer is judged on its layer's first rows, whomever they were for."""


class NoCalibrationError(ModelsError):
    """The package can't be run on text; the message says why."""


def calibration_rows(package: Package) -> list[Tensor]:
    """Token ids, int64 [at most ROW_TOKENS], for each part of the text. Raises NoCalibrationError."""
    if not (package.backbone_dir / "tokenizer.json").is_file():
        raise NoCalibrationError("the package has no tokenizer")
    text = resources.files("moe.models").joinpath("calibration.txt").read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.open(package.backbone_dir)
        rows = [torch.tensor(tokenizer.encode(part)[:ROW_TOKENS], dtype=torch.int64) for part in text.split("\f")]
    except TextError as error:
        raise NoCalibrationError(str(error)) from error
    rows = [row for row in rows if len(row) > 1]
    if not rows:
        raise NoCalibrationError("the package's tokenizer makes no tokens of the calibration text")
    return rows


@dataclass
class Seen:
    """What experts got to see in a run. layers: layer -> (hidden [n, hidden], experts chosen int64 [n, k])."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def rows(self, layer: int, expert: int) -> Tensor | None:
        """Rows for judging an expert, float32 [at most SEEN_ROWS, hidden]; None when the layer was never asked."""
        if layer not in self.layers:
            return None
        hidden, index = self.layers[layer]
        mine = hidden[(index == expert).any(dim=1)]
        return (mine if len(mine) >= FEWEST_ROWS else hidden)[:SEEN_ROWS].float()


class LocalExperts:
    """A package's experts here, in float32; see moe.models.contract.Experts. backend: of moe.kernels.group_ffn."""

    def __init__(self, package: Package, backend: str, seen: Seen | None = None) -> None:
        self._package, self._backend, self._seen = package, backend, seen
        self._mapped: dict[int, dict[int, Expert]] = {}

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """As the contract has it; rows are not looked at."""
        if self._seen is not None and layer not in self._seen.layers:
            self._seen.layers[layer] = (hidden.clone(), index.clone())
        manifest = self._package.manifest
        count = manifest.moe_layers[layer]
        experts = {expert: _in_float32(self._expert(expert)[layer]) for expert in range(count)}
        group = PackedGroup(experts, manifest.ffn, backend=self._backend)
        places = torch.arange(len(hidden)).repeat_interleave(index.shape[1])
        kept = index.flatten() < count
        return group(hidden, places[kept], index.flatten()[kept], weights.flatten()[kept], hidden.dtype)

    def _expert(self, expert: int) -> dict[int, Expert]:
        if expert not in self._mapped:
            self._mapped[expert] = self._package.expert_weights(expert)
        return self._mapped[expert]


def _in_float32(expert: Expert) -> Expert:
    """Bytes stay; what they are computed with changes."""
    biases = [None if bias is None else bias.float() for bias in (expert.up_bias, expert.down_bias)]
    if isinstance(expert, QuantisedExpert):
        return QuantisedExpert(expert.up, expert.down, torch.float32, *biases)
    return ExpertWeights(expert.up.float(), expert.down.float(), *biases)


class CalibrationRun:
    """Runs packages that share one backbone on the calibration text. Raises NoCalibrationError when it can't be run."""

    def __init__(self, package: Package) -> None:
        self.rows = calibration_rows(package)
        from moe.models.backbone import load_backbone

        try:
            self._backbone = load_backbone(package, dtype=torch.float32, deterministic=True)
            self._backbone.allocate(len(self.rows), ROW_TOKENS)
        except (ModelsError, MemoryError) as error:
            raise NoCalibrationError(str(error)) from error

    @property
    def tokens(self) -> int:
        """Tokens that a perplexity is over: all but the first of each part."""
        return sum(len(row) - 1 for row in self.rows)

    def perplexity(self, experts: Experts) -> float:
        """e to the mean surprise of a token, with these experts; six digits."""
        segments = [Segment(slot, 0, len(row)) for slot, row in enumerate(self.rows)]
        ids = torch.cat(self.rows)
        last = torch.tensor([len(row) for row in self.rows]).cumsum(0) - 1
        wanted = torch.ones(len(ids), dtype=torch.bool).index_fill_(0, last, False).nonzero()[:, 0]
        logits = self._backbone.step(PackedBatch(segments, ids, wanted), experts)
        return float(f"{exp(float(F.cross_entropy(logits, ids[wanted + 1]))):.5e}")
