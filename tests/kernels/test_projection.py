"""From hidden states into the cache in one call: the same as operator by operator, to the bit of each rounding."""

from dataclasses import dataclass

import pytest
import torch
from moe.kernels.attention import KeyRanges, SlotAttention
from moe.kernels.attention.half_layer import HalfLayer
from moe.kernels.attention.projection import HeadNorms, Projection, Rotary
from moe.kernels.linear import PackedLinear
from moe.kernels.rms_norm import RmsNorm
from torch import Tensor

HEADS, KEY_HEADS, SIZE, WIDTH = 4, 2, 16, 24
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@dataclass
class Stage:
    """A layer's cache of zeros, its joined product and five rows with their angles."""

    dtype: torch.dtype
    angles: int
    halves: bool = False

    def __post_init__(self) -> None:
        self.keys, self.values = (torch.zeros(3, KEY_HEADS, 8, SIZE, dtype=self.dtype) for _ in range(2))
        self.attention = SlotAttention(self.keys, self.values, groups=HEADS // KEY_HEADS, backend="native")
        weight = drawn((HEADS + 2 * KEY_HEADS) * SIZE, WIDTH, dtype=self.dtype)
        self.qkv = PackedLinear(weight, drawn(weight.shape[0], dtype=self.dtype, seed=1), backend="native")
        self.rows = drawn(5, WIDTH, dtype=self.dtype, seed=2)
        self.cos, self.sin = (drawn(5, self.angles, seed=seed).clamp(-1, 1).to(self.dtype) for seed in (3, 4))
        if not self.halves:
            self.cos, self.sin = (torch.cat((a[:, : self.angles // 2],) * 2, dim=1) for a in (self.cos, self.sin))
        places = torch.tensor([[0, 0, 1], [0, 0, 2], [2, 1, 4], [1, 0, 8], [1, 2, 7]], dtype=torch.int32).T.contiguous()
        self.ranges = KeyRanges(*places)

    def project(self, norms: HeadNorms | None = None) -> Tensor:
        projection = Projection(self.qkv, query_heads=HEADS, key_heads=KEY_HEADS, head_size=SIZE, norms=norms)
        rotary = Rotary(self.cos, self.sin, halves=self.halves)
        return projection(self.attention.run, self.rows, rotary, self.ranges)

    def by_operator(self, norms: HeadNorms | None = None) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.qkv(self.rows).split([HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE], dim=1)
        if norms is not None:
            query, key = (
                RmsNorm(weight, norms.epsilon, round_first=norms.round_first)(rows.view(5, -1, len(weight))).flatten(1)
                for rows, weight in ((query, norms.query), (key, norms.key))
            )
        return (
            self.turned(query.view(5, HEADS, SIZE)),
            self.turned(key.view(5, KEY_HEADS, SIZE)),
            value.view(5, -1, SIZE),
        )

    def turned(self, heads: Tensor) -> Tensor:
        cos, sin = (torch.cat((a, a), dim=1) if self.halves else a for a in (self.cos, self.sin))
        turning, still = heads[..., : cos.shape[1]], heads[..., cos.shape[1] :]
        first, second = turning.chunk(2, dim=-1)
        turning = turning * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
        return torch.cat((turning, still), dim=-1)


def head_norms(query: int, key: int, round_first: bool = True) -> HeadNorms:
    return HeadNorms(drawn(query, seed=5), drawn(key, seed=6), 1e-5, round_first)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "norms",
    [None, head_norms(SIZE, SIZE), head_norms(HEADS * SIZE, KEY_HEADS * SIZE, round_first=False)],
    ids=["no norms", "by head", "over all heads"],
)
@pytest.mark.parametrize(("angles", "halves"), [(SIZE, False), (SIZE // 2, False), (SIZE // 2, True)])
def test_the_call_gives_the_bits_of_the_operators_it_joins(angles, halves, norms, dtype):
    stage = Stage(dtype, angles, halves)
    query, key, value = stage.by_operator(norms)
    made = stage.project(norms)
    assert torch.equal(made[:, : HEADS * SIZE].view(5, HEADS, SIZE), query)
    slots, tokens = stage.ranges.slots.long(), stage.ranges.ends.long() - 1
    assert torch.equal(stage.keys[slots, :, tokens], key)
    assert torch.equal(stage.values[slots, :, tokens], value)


def half_layer(stage: Stage, seed: int = 7) -> tuple[HalfLayer, RmsNorm, PackedLinear, RmsNorm]:
    before, after = (RmsNorm(drawn(WIDTH, seed=seed + i), 1e-5, round_first=bool(i)) for i in range(2))
    output = PackedLinear(drawn(WIDTH, HEADS * SIZE, dtype=stage.dtype, seed=seed + 2), backend="native")
    projection = Projection(stage.qkv, query_heads=HEADS, key_heads=KEY_HEADS, head_size=SIZE)
    return HalfLayer(before, projection, output, after), before, output, after


@pytest.mark.parametrize("sunk", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_half_a_layer_gives_the_bits_of_its_steps(dtype, sunk):
    sinks = drawn(HEADS, seed=6) if sunk else None
    stage, other = Stage(dtype, SIZE), Stage(dtype, SIZE)
    half, before, output, after = half_layer(stage)
    rotary = Rotary(stage.cos, stage.sin, halves=False)
    residual, normed = half(stage.attention.run, stage.rows, rotary, stage.ranges, scale=0.25, sinks=sinks)
    rows, other.rows = other.rows, before(other.rows)
    query = other.project()[:, : HEADS * SIZE].view(5, HEADS, SIZE)
    mixed = other.attention(query, other.ranges, scale=0.25, sinks=sinks)
    want = rows + output(mixed.flatten(1))
    assert torch.equal(residual, want)
    assert torch.equal(normed, after(want))
    assert torch.equal(stage.keys, other.keys)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 3, 700])
def test_a_layer_closes_with_the_bits_of_a_sum(rows, dtype):
    half = half_layer(Stage(dtype, SIZE))[0]
    residual, made = drawn(rows, WIDTH, dtype=dtype), drawn(2, rows, WIDTH, dtype=dtype, seed=5).transpose(0, 1)[:, 0]
    assert torch.equal(half.close(residual, made), residual + made)
    with pytest.raises(ValueError, match=r"made: got torch.* \[1, \d+\], want"):
        half.close(residual[:0], made.new_zeros(1, WIDTH))


def test_a_half_layer_of_other_widths_is_refused():
    stage = Stage(torch.float32, SIZE)
    _, before, output, after = half_layer(stage)
    projection = Projection(stage.qkv, query_heads=HEADS, key_heads=KEY_HEADS, head_size=SIZE)
    with pytest.raises(ValueError, match="output: runs torch, want native"):
        HalfLayer(before, projection, PackedLinear(drawn(WIDTH, 64), backend="torch"), after)
    wide = RmsNorm(torch.ones(WIDTH + 1), 1e-5, round_first=True)
    with pytest.raises(ValueError, match=r"norms and output: got \[25, 24, 24\], want 24"):
        HalfLayer(wide, projection, output, after)


def test_a_row_has_the_same_bits_alone_and_among_others():
    stage = Stage(torch.bfloat16, SIZE)
    together = stage.project()
    stage.rows, stage.cos, stage.sin = stage.rows[3:4], stage.cos[3:4], stage.sin[3:4]
    old = stage.ranges
    stage.ranges = KeyRanges(*(each[3:4] for each in (old.slots, old.firsts, old.ends)))
    assert torch.equal(stage.project(), together[3:4])


def test_sizes_that_do_not_fit_are_refused_with_what_was_got():
    stage = Stage(torch.float32, SIZE)
    with pytest.raises(ValueError, match="qkv: has 128 outputs, want 160"):
        Projection(stage.qkv, query_heads=6, key_heads=KEY_HEADS, head_size=SIZE)
    with pytest.raises(ValueError, match="qkv: runs torch, want native"):
        Projection(PackedLinear(drawn(128, 8), backend="torch"), query_heads=4, key_heads=2, head_size=16)
    with pytest.raises(ValueError, match=r"norm of key: got \[17\], want \[16\]"):
        stage.project(head_norms(SIZE, SIZE + 1))
    stage.cos = stage.cos[:4]
    with pytest.raises(ValueError, match="cos and sin"):
        stage.project()
    stage.sin = stage.sin[:4]
    with pytest.raises(ValueError, match="rows and angles"):
        stage.project()


def test_more_angles_than_a_head_has_elements_are_refused():
    with pytest.raises(RuntimeError, match="rotary: got 16 angles for heads of 16"):
        Stage(torch.float32, SIZE, halves=True).project()
