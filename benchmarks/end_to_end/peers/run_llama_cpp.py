"""llama.cpp as an engine: its low-level API, with a plain continuous batching loop around one context.

    python -m benchmarks.end_to_end.peers.run_llama_cpp MODEL.gguf THREADS SEQUENCES CONTEXT

Each step decodes one token of every running sequence and up to 256 prompt tokens, as our own router's does.
"""

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.end_to_end.protocol import Request, Talk, run_engine

_PREFILL_TOKENS = 256


@dataclass
class _Sequence:
    """A request in a slot of the cache. cached: tokens that the cache holds."""

    request: Request
    slot: int
    next_token: int
    cached: int = 0
    made: int = 0


class _Context:
    """A model and a context of llama.cpp."""

    def __init__(self, library: Any, model: str, threads: int, sequences: int, context: int) -> None:
        self._library = library
        library.llama_backend_init()
        model_settings = library.llama_model_default_params()
        self._model = library.llama_model_load_from_file(model.encode(), model_settings)
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {model}")
        settings = library.llama_context_default_params()
        settings.n_ctx = sequences * context
        settings.n_batch = settings.n_ubatch = _PREFILL_TOKENS + sequences
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = threads
        self._context = library.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp can't make a context")
        self._vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self._batch = library.llama_batch_init(_PREFILL_TOKENS + sequences, 0, 1)

    def step(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Decodes rows of (token, position, slot, whether its next token is wanted); the most probable next tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for place, (token, position, slot, wanted) in enumerate(rows):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, slot
            batch.logits[place] = wanted
        code = self._library.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._best(place) for place, row in enumerate(rows) if row[3]]

    def forget(self, slot: int) -> None:
        """Frees a slot of the cache."""
        self._library.llama_memory_seq_rm(self._library.llama_get_memory(self._context), slot, -1, -1)

    def _best(self, place: int) -> int:
        import numpy as np

        logits = self._library.llama_get_logits_ith(self._context, place)
        row = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocabulary)).contents
        return int(np.frombuffer(row, dtype=np.float32).argmax())


def _start(words: Sequence[str], talk: Talk) -> None:
    # By name: it lives in an environment of its own, where no type checker of this one looks.
    llama_cpp: Any = importlib.import_module("llama_cpp")

    model, threads, sequences, context = words[0], *map(int, words[1:4])
    decoder = _Context(llama_cpp, model, threads, sequences, context)
    talk.ready(version=llama_cpp.__version__, threads=threads)
    free, running, waiting = list(range(sequences)), [], []  # type: ignore[var-annotated]
    while (came := talk.take(wait=not running and not waiting)) is not None or running or waiting:
        waiting += came or []
        while waiting and free:
            request = waiting.pop(0)
            running.append(_Sequence(request, free.pop(), request.prompt[0]))
        running = _step(decoder, talk, running, free)


def _step(decoder: _Context, talk: Talk, running: list[_Sequence], free: list[int]) -> list[_Sequence]:
    """One step of all; returns those that go on."""
    rows: list[tuple[int, int, int, bool]] = []
    drawing: list[_Sequence] = []
    room = _PREFILL_TOKENS
    for one in running:
        prompt = one.request.prompt
        if one.cached >= len(prompt):
            rows.append((one.next_token, one.cached, one.slot, True))
            one.cached += 1
            drawing.append(one)
            continue
        count = min(room, len(prompt) - one.cached)
        for position in range(one.cached, one.cached + count):
            rows.append((prompt[position], position, one.slot, position == len(prompt) - 1))
        room -= count
        one.cached += count
        if count and one.cached == len(prompt):
            drawing.append(one)
    for one, token in zip(drawing, decoder.step(rows), strict=True):
        one.next_token = token
        one.made += 1
        talk.tokens(one.request.id, [token])
    for one in [one for one in drawing if one.made >= one.request.new]:
        decoder.forget(one.slot)
        free.append(one.slot)
    return [one for one in running if one.made < one.request.new]


if __name__ == "__main__":
    run_engine(_start)
