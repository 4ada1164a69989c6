"""`moe score`: how probable a text is to the model."""

import math
import os

import click
from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli import answers, output
from moe.cli.addresses import Wanted, connected
from moe.cli.commands.generate import read_input
from moe.cli.options import json_option, prompt_options, router_options
from moe.cli.requests import prompt_of


@click.command(
    epilog="\b\nExamples:\n  moe score --prompt 'Paris is in France.'\n  moe score --json < article.txt\n"
    "  moe score --prompt 'Paris is in France.' --each --top 3"
)
@prompt_options
@click.option("--each", is_flag=True, help="Show every token, not only the sum.")
@click.option("--top", type=click.IntRange(0, 20), default=0, metavar="N", help="With --each: N most probable others.")
@json_option("One JSON object.")
@router_options
def score(
    *,
    prompt: str | None,
    chat: str | None,
    system: str | None,
    tokens: str | None,
    each: bool,
    top: int,
    as_json: bool,
    wanted: Wanted,
) -> None:
    """Show the log-probability and the perplexity of a text."""
    request = pb.ScoreRequest(
        prompt=prompt_of(prompt=prompt, chat=chat, system=system, tokens=tokens, read_input=read_input), top=top
    )
    with connected(os.environ, wanted) as router:
        answer = router.score(request)
    facts = _facts(answer)
    if as_json:
        scored = [answers.token_json(token) for token in answer.tokens]
        output.print_json({**facts, "token_ids": list(answer.token_ids), "tokens": scored})
        return
    if each:
        output.console().print(answers.logprob_table(answer.tokens))
    print(output.facts_text(facts))


def _facts(answer: pb.ScoreResponse) -> dict[str, float]:
    """Sums over the tokens that have a log-probability, which is all but the first."""
    count = len(answer.tokens)
    mean = answer.total_logprob / count if count else math.nan
    return {"scored_tokens": count, "total_logprob": answer.total_logprob, "perplexity": math.exp(-mean)}
