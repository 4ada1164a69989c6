"""However many layers a checkpoint has, a conversion's memory stays below two of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from moe.models.package import Package
from support import conversion_peak
from support.families import family_config, write_checkpoint

LAYERS, EXPERTS, WIDTH = 5, 10, 768
LAYER_BYTES = EXPERTS * 3 * WIDTH * WIDTH * 4


def write_large_checkpoint(family: str, out: Path) -> None:
    """Five layers of 71 MB; values don't matter, so they are cheap ones."""
    changes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_local_experts": EXPERTS}
    config = family_config(family, **changes, num_hidden_layers=LAYERS, layer_types=["full_attention"] * LAYERS)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(0.01)
    model.save_pretrained(out)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_memory_stays_below_two_layers(tmp_path: Path, family: str) -> None:
    """Mixtral stores expert by expert, which has to be joined; GPT-OSS stores fused, which has to be turned."""
    write_checkpoint(family, tmp_path / "tiny-source")
    write_large_checkpoint(family, tmp_path / "source")
    paths = [str(tmp_path / name) for name in ("tiny-source", "source", "out")]

    answer = subprocess.run(
        [sys.executable, conversion_peak.__file__, *paths], capture_output=True, text=True, check=True
    )

    assert len(Package.open(tmp_path / "out").manifest.moe_layers) == LAYERS
    assert int(answer.stdout) < 2 * LAYER_BYTES
