"""transformers as an engine, its experts computed by `grouped_mm`: whatever waits is generated as one batch.

    python -m benchmarks.end_to_end.peers.run_transformers CHECKPOINT THREADS SEQUENCES

It has no continuous batching that is its own default: requests that come while a batch runs wait for its end. Prompts
are padded to the left.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.end_to_end.protocol import Request, Talk, run_engine


def _start(words: Sequence[str], talk: Talk) -> None:
    import torch
    import transformers

    checkpoint, threads, sequences = words[0], int(words[1]), int(words[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, experts_implementation="grouped_mm"
    )
    model.eval()
    talk.ready(version=transformers.__version__, threads=threads, experts=model.config._experts_implementation)
    waiting: list[Request] = []
    with torch.inference_mode():
        while (came := talk.take(wait=not waiting)) is not None or waiting:
            waiting += came or []
            _generate(model, talk, waiting[:sequences])
            waiting = waiting[sequences:]


def _generate(model: Any, talk: Talk, batch: Sequence[Request]) -> None:
    """All to their ends; one that is done stays in the batch without being told of."""
    import torch

    width = max(len(request.prompt) for request in batch)
    padded = [[0] * (width - len(request.prompt)) + list(request.prompt) for request in batch]
    mask = torch.tensor([[int(place >= width - len(r.prompt)) for place in range(width)] for r in batch])
    ids, cache = torch.tensor(padded), None
    for made in range(1, max(request.new for request in batch) + 1):
        position = mask.cumsum(-1)[:, -ids.shape[1] :] - 1
        out = model(
            ids,
            attention_mask=mask,
            position_ids=position.clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, ids = out.cache, out.logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones(len(batch), 1, dtype=mask.dtype)], dim=1)
        for request, token in zip(batch, ids[:, 0].tolist(), strict=True):
            if made <= request.new:
                talk.tokens(request.id, [token])


if __name__ == "__main__":
    run_engine(_start)
