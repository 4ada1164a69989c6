"""`moe chat`: a conversation in the terminal."""

import contextlib
import os
import sys
from typing import Any

import click
from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli import answers, output
from moe.cli.addresses import Wanted, connected
from moe.cli.errors import CliError
from moe.cli.options import router_options, sampling_options
from moe.cli.requests import chat_prompt, checked, generate_request
from moe.cli.router_client import RouterClient

_HELP = "/reset starts anew, /experts shows who answered, /quit ends; Ctrl-C cuts an answer short"
_PROMPT = "> "


@click.command(
    epilog="\b\nExamples:\n  moe chat\n  moe chat --system 'Answer in one sentence.' --temperature 0.7\n"
    "  moe chat --context dev -n moe --model demo\n\n"
    "Within the chat: " + _HELP + "."
)
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@router_options
def chat(system: str | None, wanted: Wanted, **sampling: Any) -> None:
    """Talk with the model that is up.

    From a pipe, every line is one turn.
    """
    with connected(os.environ, wanted) as router:
        Conversation(router, system, sampling).run()


MOST_TOKENS = 256
"""Of one answer, unless --max-tokens says otherwise: a small model that repeats itself would fill the context."""


class Conversation:
    """A chat with its history."""

    def __init__(self, router: RouterClient, system: str | None, sampling: dict[str, Any]) -> None:
        self._router = router
        self._system = system
        self._sampling = {**sampling, "max_tokens": sampling.get("max_tokens") or MOST_TOKENS}
        self._history: list[pb.ChatMessage] = []
        self._final: pb.GenerateFinal | None = None
        self._reset()

    def run(self) -> None:
        """Turn by turn, until the input ends or /quit."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() line editing and history
            print(f"{_HELP}\n")
        while (line := _read_line()) is not None:
            if line == "/quit":
                return
            if line:
                self._obey(line) if line.startswith("/") else self._turn(line)

    def _obey(self, command: str) -> None:
        if command == "/reset":
            self._reset()
        elif command == "/experts" and self._final is not None:
            output.console().print(answers.expert_table(self._final))
        else:
            print(_HELP)

    def _turn(self, text: str) -> None:
        """One question and its answer. What fails is said and forgotten, so that the chat goes on."""
        question = pb.ChatMessage(role="user", content=checked(text, "the message"))
        request = generate_request(chat_prompt([*self._history, question]), self._sampling)
        try:
            answer, _, self._final = answers.stream_text(self._router.generate(request))
        except KeyboardInterrupt:
            print("\n(cut short; not kept in the conversation)")
            return
        except CliError as error:
            if not sys.stdin.isatty():
                raise
            output.print_error(str(error))
            return
        answers.tell_degradations(self._final)
        answers.tell_cut(self._final)
        self._history += [question, pb.ChatMessage(role="assistant", content=answer)]

    def _reset(self) -> None:
        self._history.clear()
        if self._system is not None:
            self._history.append(pb.ChatMessage(role="system", content=checked(self._system, "--system")))


def _read_line() -> str | None:
    try:
        return input(_PROMPT if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
