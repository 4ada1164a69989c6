"""From request messages to domain values: everything a client may get wrong is found here.

Every refusal names the field, the value and the bound. What passes can be run: it fits the context, the vocabulary and
the cache. Tokenising may take long for a long text, so the front desk calls this from a thread then.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moe.api.inference.v1 import inference_pb2
from moe.models.text import TextError, Tokenizer
from moe.router.domain import Generation, SamplingParameters, Scoring
from moe.runtime.errors import InvalidRequest, NotFound

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_STOP_IDS = 64
MAX_LOGPROBS = 20
_BYTES_PER_ID = 4
_SHOWN = 80


@dataclass(frozen=True)
class RequestLimits:
    """What this router accepts. default_max_tokens: of an answer whose length the request leaves open."""

    model: str
    vocabulary: int
    max_context: int
    max_prompt_bytes: int
    default_max_tokens: int
    end_ids: frozenset[int]
    defaults: SamplingParameters


class RequestReader:
    """Reads requests. Safe to use from several threads."""

    def __init__(self, limits: RequestLimits, tokenizer: Tokenizer | None) -> None:
        self.limits = limits
        self._tokenizer = tokenizer

    def generation(self, request: inference_pb2.GenerateRequest) -> Generation:
        """Raises InvalidRequest, NotFound."""
        self.check_model(request.model)
        sampling = self._sampling(request.sampling)
        stops, stop_ids = self._stops(request.stop), self._stop_ids(request.stop_token_ids)
        logprobs = request.logprobs if request.HasField("logprobs") else None
        _check_range("logprobs", logprobs or 0, 0, MAX_LOGPROBS)
        prompt = self.prompt(request.prompt)
        end_ids = frozenset() if request.ignore_eos else self.limits.end_ids
        max_tokens = self._max_tokens(request.max_tokens if request.HasField("max_tokens") else None, len(prompt))
        return Generation(prompt, sampling, max_tokens, stops, stop_ids | end_ids, logprobs)

    def scoring(self, request: inference_pb2.ScoreRequest) -> Scoring:
        """Raises InvalidRequest, NotFound."""
        self.check_model(request.model)
        _check_range("top", request.top, 0, MAX_LOGPROBS)
        prompt = self.prompt(request.prompt)
        if len(prompt) < 2:
            raise InvalidRequest("got 1 token; a score needs at least 2", field="prompt")
        self._check_length(len(prompt))
        return Scoring(prompt, request.top)

    def check_model(self, name: str) -> None:
        """Raises NotFound unless the name is empty or that of the model served."""
        if name and name != self.limits.model:
            raise NotFound(f"model: got {_shown(name)}; this router serves {self.limits.model!r}")

    def prompt(self, prompt: inference_pb2.Prompt) -> tuple[int, ...]:
        """The prompt's ids, at least one. Raises InvalidRequest."""
        kind = prompt.WhichOneof("kind")
        if kind == "text":
            return self._encoded("prompt.text", prompt)
        if kind == "chat":
            return self._encoded("prompt.chat", prompt)
        if kind == "tokens":
            return self._ids(prompt.tokens.ids)
        raise InvalidRequest("is missing; set text, tokens or chat", field="prompt")

    @staticmethod
    def _size(prompt: inference_pb2.Prompt) -> int:
        """Bytes of what a prompt says, as text or chat."""
        if prompt.WhichOneof("kind") == "text":
            return len(prompt.text.encode())
        return sum(len(m.role.encode()) + len(m.content.encode()) for m in prompt.chat.messages)

    def _encoded(self, field: str, prompt: inference_pb2.Prompt) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise InvalidRequest("this model package has no tokenizer; send token ids (prompt.tokens)", field=field)
        self._check_bytes(field, self._size(prompt))
        self._check_messages(len(prompt.chat.messages))
        try:
            if field == "prompt.text":
                ids = self._tokenizer.encode(_not_empty(field, prompt.text))
            else:
                ids = self._tokenizer.encode_chat(_messages(prompt.chat))
        except TextError as error:
            raise InvalidRequest(str(error), field=field) from error
        if not ids:
            raise InvalidRequest("has no tokens", field=field)
        outside = next((i for i in ids if i >= self.limits.vocabulary), None)
        if outside is not None:
            raise InvalidRequest(f"holds token {outside}, outside the model's {self.limits.vocabulary}", field=field)
        return tuple(ids)

    def _check_messages(self, messages: int) -> None:
        """Each message costs the template's tokens, however short it is."""
        if messages > self.limits.max_context:
            limit = f"the context holds {self.limits.max_context} tokens (--max-context)"
            raise InvalidRequest(f"got {messages} messages; {limit}", field="prompt.chat.messages")

    def _ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        field = "prompt.tokens.ids"
        if not ids:
            raise InvalidRequest("is empty; send at least one token", field=field)
        self._check_bytes(field, len(ids) * _BYTES_PER_ID)
        self._check_ids(field, ids)
        return tuple(ids)

    def _check_ids(self, field: str, ids: Sequence[int]) -> None:
        for place, token in enumerate(ids):
            if token >= self.limits.vocabulary:
                bound = f"the vocabulary has {self.limits.vocabulary} tokens"
                raise InvalidRequest(f"got {token} at place {place}; {bound}", field=field)

    def _check_bytes(self, field: str, size: int) -> None:
        if size > self.limits.max_prompt_bytes:
            limit = f"at most {self.limits.max_prompt_bytes} bytes are accepted (--max-prompt-bytes)"
            raise InvalidRequest(f"got {size} bytes; {limit}", field=field)

    def _check_length(self, tokens: int) -> None:
        if tokens > self.limits.max_context:
            limit = f"the context holds {self.limits.max_context} (--max-context)"
            raise InvalidRequest(f"got {tokens} tokens; {limit}", field="prompt")

    def _max_tokens(self, wanted: int | None, prompt: int) -> int:
        self._check_length(prompt + 1)
        room = self.limits.max_context - prompt
        if wanted is None:
            return min(room, self.limits.default_max_tokens)
        if not 1 <= wanted <= room:
            left = f"the prompt has {prompt} tokens of the {self.limits.max_context} that the context holds"
            raise InvalidRequest(f"got {wanted}; want 1 to {room}, as {left}", field="max_tokens")
        return wanted

    def _sampling(self, message: inference_pb2.Sampling) -> SamplingParameters:
        stated = {field.name: value for field, value in message.ListFields()}
        seed = stated.pop("seed", None)
        _check_sampling(stated, "sampling.")
        return replace(self.limits.defaults, **stated, seed=secrets.randbits(64) if seed is None else seed)

    def _stops(self, stops: Sequence[str]) -> tuple[str, ...]:
        if stops and self._tokenizer is None:
            raise InvalidRequest("this model package has no tokenizer; use stop_token_ids", field="stop")
        if len(stops) > MAX_STOPS:
            raise InvalidRequest(f"got {len(stops)} texts; at most {MAX_STOPS} are accepted", field="stop")
        for place, stop in enumerate(stops):
            size = len(stop.encode())
            if not 1 <= size <= MAX_STOP_BYTES:
                raise InvalidRequest(f"got {size} bytes; want 1 to {MAX_STOP_BYTES}", field=f"stop[{place}]")
        return tuple(stops)

    def _stop_ids(self, ids: Sequence[int]) -> frozenset[int]:
        if len(ids) > MAX_STOP_IDS:
            raise InvalidRequest(f"got {len(ids)} ids; at most {MAX_STOP_IDS} are accepted", field="stop_token_ids")
        self._check_ids("stop_token_ids", ids)
        return frozenset(ids)


_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 100, False),
    "top_p": (0, 1, True),
    "top_k": (0, 2**31 - 1, False),
    "min_p": (0, 1, False),
    "repetition_penalty": (0, 100, True),
    "presence_penalty": (-100, 100, False),
    "frequency_penalty": (-100, 100, False),
}
"""Name -> lowest, highest, and whether the lowest itself is excluded."""


def sampling_defaults(stated: Mapping[str, float]) -> SamplingParameters:
    """What unset fields mean, by what the model's generation config states. Raises InvalidRequest."""
    _check_sampling(stated, "")
    if "top_k" in stated:
        stated = {**stated, "top_k": int(stated["top_k"])}
    return replace(SamplingParameters(), **stated)  # type: ignore[arg-type]


def _check_sampling(stated: Mapping[str, float], prefix: str) -> None:
    for name, value in stated.items():
        low, high, open_below = _RANGES[name]
        _check_range(f"{prefix}{name}", value, low, high, open_below=open_below)


def _check_range(field: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    inside = math.isfinite(value) and low <= value <= high and not (open_below and value == low)
    if not inside:
        bounds = f"more than {low:g} and at most {high:g}" if open_below else f"{low:g} to {high:g}"
        raise InvalidRequest(f"got {value:g}; want {bounds}", field=field)


def _not_empty(field: str, text: str) -> str:
    if not text:
        raise InvalidRequest("is empty; send at least one character", field=field)
    return text


def _messages(chat: inference_pb2.Chat) -> list[dict[str, str]]:
    if not chat.messages:
        raise InvalidRequest("is empty; send at least one message", field="prompt.chat.messages")
    for place, message in enumerate(chat.messages):
        if not message.role:
            field = f"prompt.chat.messages[{place}].role"
            raise InvalidRequest("is empty; want one the model's template knows, such as user", field=field)
    return [{"role": message.role, "content": message.content} for message in chat.messages]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
