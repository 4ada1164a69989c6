"""Shows what a generation streams: text as it comes, then which experts worked and what it took."""

import sys
from collections.abc import Iterable
from typing import Any

from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli import output
from moe.cli.errors import CliError
from rich.table import Table

_BAR = 24


def stream_text(responses: Iterable[pb.GenerateResponse]) -> tuple[str, list[pb.GeneratedToken], pb.GenerateFinal]:
    """Writes the text as it comes, and a newline at its end; returns text, tokens and the final message.

    Where there is no text (a package without a tokenizer) the token ids are written instead.
    Raises CliError when the stream ends without a final message.
    """
    pieces: list[str] = []
    tokens: list[pb.GeneratedToken] = []
    for response in responses:
        if response.WhichOneof("kind") == "final":
            _end_line(pieces, tokens)
            return "".join(pieces), tokens, response.final
        pieces.append(response.chunk.text)
        tokens += response.chunk.tokens
        output.write_text(response.chunk.text)
    raise unfinished()


def unfinished() -> CliError:
    """What to raise when a stream ends without a final message."""
    return CliError("the router ended the stream without a final message")


def _end_line(pieces: list[str], tokens: list[pb.GeneratedToken]) -> None:
    text = "".join(pieces)
    if not text and tokens:
        output.write_text(" ".join(str(token.id) for token in tokens))
    if not text.endswith("\n"):
        output.write_text("\n")


def expert_table(final: pb.GenerateFinal) -> Table:
    """Which experts produced the answer."""
    table = Table(box=None, pad_edge=False)
    table.add_column("expert", justify="right")
    table.add_column("slots", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    largest = max((share.share for share in final.experts), default=0.0)
    for share in final.experts:
        bar = "█" * round(_BAR * share.share / largest) if largest else ""
        table.add_row(str(share.expert), str(share.slots), f"{100 * share.share:.1f} %", bar)
    return table


def logprob_table(tokens: Iterable[pb.GeneratedToken]) -> Table:
    """The log-probability of each token and of its most probable alternatives."""
    table = Table(box=None, pad_edge=False)
    table.add_column("token", justify="right")
    table.add_column("ln P", justify="right")
    table.add_column("most probable")
    for token in tokens:
        top = ", ".join(f"{each.token_id} ({each.logprob:.3f})" for each in token.top)
        table.add_row(str(token.id), f"{token.logprob:.4f}", top)
    return table


def took(final: pb.GenerateFinal) -> str:
    """One line about time: `24 tokens in 1.9 s, the first after 0.31 s, then 14.5 a second`."""
    count, timings = final.usage.generated_tokens, final.timings
    decoding = timings.total_s - timings.first_token_s
    rate = f", then {(count - 1) / decoding:.1f} a second" if count > 1 and decoding > 0 else ""
    return f"{count} tokens in {timings.total_s:.1f} s, the first after {timings.first_token_s:.2f} s{rate}"


def tell_degradations(final: pb.GenerateFinal) -> None:
    """Says on standard error whatever made the answer differ from the undisturbed one."""
    for degradation in final.degradations:
        print(
            f"note: {degradation.kind} in {degradation.layer_calls} layer calls: {output.safe(degradation.reason)}",
            file=sys.stderr,
        )


def tell_cut(final: pb.GenerateFinal) -> None:
    """Says on standard error that an answer ended because of its length."""
    if final.finish_reason == pb.FINISH_REASON_LENGTH:
        print(f"note: cut at {final.usage.generated_tokens} tokens (--max-tokens)", file=sys.stderr)


def final_json(final: pb.GenerateFinal) -> dict[str, Any]:
    """The final message for programs."""
    return {
        "finish_reason": pb.FinishReason.Name(final.finish_reason).removeprefix("FINISH_REASON_").lower(),
        "stop_match": final.stop_match,
        "usage": {
            "prompt_tokens": final.usage.prompt_tokens,
            "generated_tokens": final.usage.generated_tokens,
        },
        "timings": {
            "queued_s": final.timings.queued_s,
            "first_token_s": final.timings.first_token_s,
            "total_s": final.timings.total_s,
        },
        "experts": [{"expert": each.expert, "slots": each.slots, "share": each.share} for each in final.experts],
        "degradations": [
            {"kind": each.kind, "layer_calls": each.layer_calls, "reason": each.reason} for each in final.degradations
        ],
        "seed": final.seed,
    }


def token_json(token: pb.GeneratedToken) -> dict[str, Any]:
    """A token for programs."""
    answer: dict[str, Any] = {"id": token.id}
    if token.HasField("logprob"):
        answer["logprob"] = token.logprob
        answer["top"] = [{"id": each.token_id, "logprob": each.logprob} for each in token.top]
    return answer
