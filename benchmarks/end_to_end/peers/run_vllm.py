"""vLLM's engine on the CPU, in this process.

python -m benchmarks.end_to_end.peers.run_vllm CHECKPOINT THREADS SEQUENCES CONTEXT
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.end_to_end.protocol import Talk, run_engine

_CACHE_GIB = "1"


def _start(words: Sequence[str], talk: Talk) -> None:
    checkpoint, threads, sequences, context = words[0], *map(int, words[1:4])
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": _CACHE_GIB,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    # By name: it lives in an environment of its own, where no type checker of this one looks.
    vllm: Any = importlib.import_module("vllm")

    arguments = vllm.EngineArgs(
        model=checkpoint,
        dtype="bfloat16",
        max_model_len=context,
        max_num_seqs=sequences,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)
    talk.ready(version=vllm.__version__, threads=threads)
    while (came := talk.take(wait=not engine.has_unfinished_requests())) is not None or (
        engine.has_unfinished_requests()
    ):
        for request in came or []:
            sampling = vllm.SamplingParams(
                temperature=0.0,
                max_tokens=request.new,
                ignore_eos=True,
                detokenize=False,
                output_kind=importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA,
            )
            engine.add_request(str(request.id), {"prompt_token_ids": list(request.prompt)}, sampling)
        for output in engine.step():
            talk.tokens(int(output.request_id), output.outputs[0].token_ids)


if __name__ == "__main__":
    run_engine(_start)
