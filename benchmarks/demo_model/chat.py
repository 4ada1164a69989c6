"""Chat text made by the dense model itself: `python -m benchmarks.demo_model.chat --help`.

Distillation needs text as the demo will see it: the ChatML template with the model's own answers. The dense model
answers the questions of prompts.py; what it writes is its own output, so no one else's text is involved. Writes
`chat.train.txt` and `chat.eval.txt` beside the corpora; the same seed, versions and thread count give the same text.
"""

from pathlib import Path

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.demo_model.precision import dtype_option
from benchmarks.demo_model.prompts import evaluation_prompts, training_prompts

BATCH = 32
NEW_TOKENS = 192


@torch.inference_mode()
def answer_batch(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[str]:
    """One sampled conversation per prompt, template and end token included."""
    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in prompts
    ]
    encoded = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False)
    answered = model.generate(
        **encoded, max_new_tokens=NEW_TOKENS, do_sample=True, temperature=0.7, top_p=0.95,
        pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    start = encoded["input_ids"].shape[1]
    return [text + decode_until_end(tokenizer, row[start:].tolist()) for text, row in zip(asked, answered, strict=True)]


def decode_until_end(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """The answer up to and including the first end token."""
    end = tokenizer.eos_token_id
    return str(tokenizer.decode(ids[: ids.index(end) + 1] if end in ids else ids)) + "\n"


def write_conversations(dense: Path, dtype: torch.dtype, prompts: list[str], path: Path) -> None:
    """Ask every prompt in batches and write the conversations one after another."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(dense, padding_side="left")
    texts: list[str] = []
    for start in range(0, len(prompts), BATCH):
        texts += answer_batch(model, tokenizer, prompts[start : start + BATCH])
        click.echo(f"{path.name}: {len(texts)} of {len(prompts)} conversations")
        partial = path.with_suffix(".partial")
        partial.write_text("".join(texts), encoding="utf-8")
    partial.replace(path)


@click.command()
@click.option("--dense", type=click.Path(path_type=Path, exists=True), required=True, help="Dense checkpoint.")
@click.option("--corpora", type=click.Path(path_type=Path), required=True, help="Folder to write the two files to.")
@click.option("--conversations", default=384, show_default=True, help="Training conversations, 900 at most.")
@dtype_option
def main(*, dense: Path, corpora: Path, conversations: int, dtype: torch.dtype) -> None:
    """Write chat.eval.txt and chat.train.txt."""
    corpora.mkdir(parents=True, exist_ok=True)
    write_conversations(dense, dtype, evaluation_prompts(), corpora / "chat.eval.txt")
    write_conversations(dense, dtype, training_prompts(conversations), corpora / "chat.train.txt")


if __name__ == "__main__":
    main()
