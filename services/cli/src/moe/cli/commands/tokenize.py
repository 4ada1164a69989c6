"""`moe tokenize`: text to token ids and back, by the model that is served."""

import os

import click
from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli import output
from moe.cli.addresses import Wanted, connected
from moe.cli.commands.generate import read_input
from moe.cli.options import json_option, prompt_options, router_options
from moe.cli.requests import prompt_of


@click.command(
    epilog="\b\nExamples:\n  moe tokenize --prompt 'Hello world'\n  moe tokenize --chat 'Hello' --json\n"
    "  moe tokenize --tokens '19556 905'"
)
@prompt_options
@json_option("One JSON object with ids and text.")
@router_options
def tokenize(
    *,
    prompt: str | None,
    chat: str | None,
    system: str | None,
    tokens: str | None,
    as_json: bool,
    wanted: Wanted,
) -> None:
    """Turn a text or a chat into token ids, or ids (--tokens) back into text."""
    request = pb.TokenizeRequest(
        prompt=prompt_of(prompt=prompt, chat=chat, system=system, tokens=tokens, read_input=read_input)
    )
    with connected(os.environ, wanted) as router:
        answer = router.tokenize(request)
    if as_json:
        output.print_json({"token_ids": list(answer.token_ids), "text": answer.text})
    elif tokens is not None:
        output.write_text(answer.text + "\n")
    else:
        print(" ".join(map(str, answer.token_ids)))
