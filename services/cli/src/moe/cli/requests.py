"""From options to messages of moe.inference.v1. Pure but for standard input, which is handed in."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli.errors import UsageError

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


def prompt_of(
    *,
    prompt: str | None,
    chat: str | None,
    system: str | None,
    tokens: str | None,
    read_input: Callable[[], bytes | None],
) -> pb.Prompt:
    """The prompt that was given in one of its forms, else standard input as raw text. Raises UsageError.

    read_input: all of standard input, or None where it is a terminal.
    """
    given = [
        name for name, value in (("--prompt", prompt), ("--chat", chat), ("--tokens", tokens)) if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; give one prompt")
    if system is not None and chat is None:
        raise UsageError("--system goes with --chat")
    if tokens is not None:
        return pb.Prompt(tokens=pb.TokenIds(ids=token_ids(tokens)))
    if chat is not None:
        return chat_prompt(messages(system, _text("--chat", chat, read_input)))
    if prompt is None and (piped := read_input()) is not None:
        return pb.Prompt(text=_decoded(piped))
    if prompt is None:
        raise UsageError("there is no prompt; give --prompt TEXT, --chat TEXT, --tokens IDS, or pipe a text in")
    return pb.Prompt(text=_text("--prompt", prompt, read_input))


def messages(system: str | None, user: str) -> list[pb.ChatMessage]:
    """The beginning of a chat."""
    opening = [pb.ChatMessage(role="system", content=checked(system, "--system"))] if system is not None else []
    return [*opening, pb.ChatMessage(role="user", content=user)]


def chat_prompt(chat: Sequence[pb.ChatMessage]) -> pb.Prompt:
    """A chat as a prompt."""
    return pb.Prompt(chat=pb.Chat(messages=chat))


def token_ids(text: str) -> list[int]:
    """Ids separated by commas or white space. Raises UsageError naming the first that is none."""
    words = [word for word in re.split(r"[\s,]+", text.strip("[] \n")) if word]
    for word in words:
        if not (word.isascii() and word.isdecimal() and int(word) < 2**32):
            raise UsageError(f"{word!r} is no token id; want whole numbers from 0 to {2**32 - 1}")
    return [int(word) for word in words]


def generate_request(prompt: pb.Prompt, options: Mapping[str, Any], logprobs: int | None = None) -> pb.GenerateRequest:
    """The request; options that are None are left to the model."""
    given = {name: options[name] for name in _SAMPLING_FIELDS if options.get(name) is not None}
    return pb.GenerateRequest(
        prompt=prompt,
        sampling=pb.Sampling(**given),
        max_tokens=options.get("max_tokens"),
        stop=[checked(text, "--stop") for text in options.get("stop", ())],
        stop_token_ids=options.get("stop_token_id", ()),
        ignore_eos=options.get("ignore_eos", False),
        logprobs=logprobs,
    )


def checked(text: str, where: str) -> str:
    """The text, if it is Unicode. Raises UsageError for bytes of the command line that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where} is not UTF-8 at character {error.start}") from error
    return text


def _text(option: str, value: str, read_input: Callable[[], bytes | None]) -> str:
    if value != "-":
        return checked(value, option)
    piped = read_input()
    if piped is None:
        raise UsageError(f"{option} - reads standard input, and that is a terminal; pipe a text in")
    return _decoded(piped)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 at byte {error.start}") from error
