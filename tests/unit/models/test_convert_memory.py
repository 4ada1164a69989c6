"""However many layers a checkpoint has, a conversion's memory stays below two of them."""

import subprocess
import sys
from pathlib import Path

import torch
import transformers
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


def test_memory_stays_below_two_layers(tmp_path: Path) -> None:
    """Mixtral stores expert by expert, which has to be joined; GPT-OSS stores fused, which has to be turned."""
    families = ("mixtral", "gpt_oss")
    write_checkpoint("mixtral", tmp_path / "source")
    for family in families:
        write_large_checkpoint(family, tmp_path / family.replace("_", "-"))
    sources = [str(tmp_path / family.replace("_", "-")) for family in families]

    answer = subprocess.run(
        [sys.executable, conversion_peak.__file__, str(tmp_path / "source"), str(tmp_path / "made"), *sources],
        capture_output=True,
        text=True,
        check=True,
    )

    peaks = dict(zip(families, map(int, answer.stdout.split()), strict=True))
    assert {family: peak < 2 * LAYER_BYTES for family, peak in peaks.items()} == dict.fromkeys(families, True), peaks
