"""From domain values to response messages."""

from collections.abc import Mapping, Sequence

from moe.api.inference.v1 import inference_pb2
from moe.router.domain import Ending, Finish, Piece, Scored, TokenScore

_FINISH = {Finish.STOP: inference_pb2.FINISH_REASON_STOP, Finish.LENGTH: inference_pb2.FINISH_REASON_LENGTH}


def chunk_message(piece: Piece) -> inference_pb2.GenerateResponse:
    """A piece of an answer."""
    chunk = inference_pb2.GenerateChunk(text=piece.text, tokens=[_token(score) for score in piece.tokens])
    return inference_pb2.GenerateResponse(chunk=chunk)


def final_message(ending: Ending) -> inference_pb2.GenerateResponse:
    """The end of an answer."""
    timings = ending.timings
    final = inference_pb2.GenerateFinal(
        finish_reason=_FINISH[ending.finish],
        stop_match=ending.stop_match,
        usage=inference_pb2.Usage(prompt_tokens=ending.prompt_tokens, generated_tokens=ending.generated_tokens),
        timings=inference_pb2.Timings(
            queued_s=timings.queued_s, first_token_s=timings.first_token_s, total_s=timings.total_s
        ),
        experts=_shares(ending.slots_by_expert),
        degradations=[
            inference_pb2.Degradation(kind=d.kind, layer_calls=d.layer_calls, reason=d.reason)
            for d in ending.degradations
        ],
        seed=ending.seed,
    )
    return inference_pb2.GenerateResponse(final=final)


def score_message(scored: Scored, prompt: Sequence[int]) -> inference_pb2.ScoreResponse:
    """The scores of a prompt."""
    return inference_pb2.ScoreResponse(
        tokens=[_token(score) for score in scored.tokens],
        token_ids=prompt,
        total_logprob=sum(score.logprob or 0.0 for score in scored.tokens),
    )


def _token(score: TokenScore) -> inference_pb2.GeneratedToken:
    top = [inference_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in score.top]
    return inference_pb2.GeneratedToken(id=score.token, logprob=score.logprob, top=top)


def _shares(slots_by_expert: Mapping[int, int]) -> list[inference_pb2.ExpertShare]:
    total = sum(slots_by_expert.values())
    return [
        inference_pb2.ExpertShare(expert=expert, slots=slots, share=slots / total)
        for expert, slots in sorted(slots_by_expert.items())
    ]
