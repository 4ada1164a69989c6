"""`moe generate`: one prompt, one streamed answer."""

import os
import sys
from collections.abc import Iterable
from typing import Any

import click
from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli import answers, output
from moe.cli.addresses import Wanted, connected
from moe.cli.options import PromptCommand, json_option, prompt_options, router_options, sampling_options
from moe.cli.requests import generate_request, prompt_of


@click.command(
    cls=PromptCommand,
    epilog="\b\nExamples:\n"
    "  moe generate --prompt 'The capital of France is' --max-tokens 16\n"
    "  moe generate --chat 'Write a haiku about routers' --temperature 0.8 --seed 7\n"
    "  moe generate --experts --chat 'Who are you?'\n"
    "  echo 'Once upon a time' | moe generate --json\n"
    "  moe generate --context dev -n moe --model demo --chat 'Hello!'",
)
@prompt_options
@sampling_options
@click.option("--experts", is_flag=True, help="After the answer, show which experts produced it.")
@click.option("--logprobs", type=click.IntRange(0, 20), metavar="N", help="Show ln P of each token and of N others.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), metavar="S", help="Seconds at most.")
@json_option("One JSON object per line: a chunk each, then `final`.")
@router_options
def generate(
    *,
    prompt: str | None,
    chat: str | None,
    system: str | None,
    tokens: str | None,
    experts: bool,
    logprobs: int | None,
    timeout_s: float | None,
    as_json: bool,
    wanted: Wanted,
    **sampling: Any,
) -> None:
    """Continue a prompt and stream the answer.

    The prompt is raw text (--prompt, or standard input), a chat message (--chat) or token ids (--tokens).
    """
    request = generate_request(
        prompt_of(prompt=prompt, chat=chat, system=system, tokens=tokens, read_input=read_input), sampling, logprobs
    )
    with connected(os.environ, wanted) as router:
        responses = router.generate(request, timeout_s)
        if as_json:
            _print_json(responses)
        else:
            _print_text(responses, experts=experts, logprobs=logprobs is not None)


def read_input() -> bytes | None:
    """All of standard input, or None where it is a terminal."""
    return None if sys.stdin.isatty() else sys.stdin.buffer.read()


def _print_json(responses: Iterable[pb.GenerateResponse]) -> None:
    for response in responses:
        if response.WhichOneof("kind") == "final":
            output.print_json({"final": answers.final_json(response.final)})
            return
        tokens = [answers.token_json(token) for token in response.chunk.tokens]
        output.print_json({"text": response.chunk.text, "tokens": tokens})
    raise answers.unfinished()


def _print_text(responses: Iterable[pb.GenerateResponse], *, experts: bool, logprobs: bool) -> None:
    _, tokens, final = answers.stream_text(responses)
    console = output.console()
    if logprobs:
        console.print(answers.logprob_table(tokens))
    if experts:
        console.print(answers.expert_table(final))
    answers.tell_degradations(final)
    if sys.stderr.isatty():
        print(answers.took(final), file=sys.stderr)
