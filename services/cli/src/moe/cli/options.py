"""Options that several commands share."""

import functools
from collections.abc import Callable
from typing import Any

import click
from moe.cli.addresses import Wanted
from moe.cli.cluster.place import Place

Command = Callable[..., Any]


class PromptCommand(click.Command):
    """A command whose prompt is an option, and which says so to whoever gives it as an argument."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's. Raises click.UsageError for a word that belongs to no option."""
        rest = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            raise click.UsageError(
                f"{' '.join(ctx.args)!r} belongs to no option; --prompt 'TEXT' continues a text, --chat 'TEXT' answers "
                "a message; quote a text of several words",
                ctx,
            )
        return rest


def router_options(command: Command) -> Command:
    """Which router to talk to, as `wanted`: --address, --name, or a place on a cluster."""

    @functools.wraps(command)
    def with_router(*words: Any, address: str | None, name: str | None, place: Place, **rest: Any) -> Any:
        return command(*words, wanted=Wanted(address, name, place), **rest)

    options = place_options(with_router)
    options = click.option("--name", metavar="NAME", help="The deployment to talk to, as `moe status` lists it.")(
        options
    )
    return click.option(
        "--address",
        metavar="TARGET",
        help="The router's address, host:port or unix:/path. Default: $MOE_ADDRESS, else the one that is up here.",
    )(options)


def place_options(command: Command) -> Command:
    """A model on a cluster, as `place`: --context, --namespace, --model; any of them means a cluster."""

    @functools.wraps(command)
    def with_place(*words: Any, context: str | None, namespace: str | None, model: str | None, **rest: Any) -> Any:
        return command(*words, place=Place(context or "", namespace or "", model or ""), **rest)

    options = click.option(
        "--model", metavar="NAME", help="The MoEModel on a cluster. Default: the only one of the namespace."
    )(with_place)
    options = click.option("-n", "--namespace", metavar="NAME", help="Its namespace. Default: the context's.")(options)
    return click.option(
        "--context", metavar="NAME", help="The cluster, as the kubeconfig names it. Default: the current context."
    )(options)


def prompt_options(command: Command) -> Command:
    """The prompt in its three forms: --prompt, --chat (with --system), --tokens."""
    command = click.option("--tokens", metavar="IDS", help="Token ids, separated by commas or spaces.")(command)
    command = click.option("--system", metavar="TEXT", help="With --chat: the system message.")(command)
    command = click.option("--chat", metavar="TEXT", help="What a user says, put into the model's chat template.")(
        command
    )
    return click.option("--prompt", metavar="TEXT", help="Raw text to continue; - reads standard input.")(command)


def json_option(help_text: str) -> Callable[[Command], Command]:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def sampling_options(command: Command) -> Command:
    """How the next token is drawn; an option that is not given is left to the model."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


_SAMPLING = (
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Most tokens to generate; chat: 256, else the router's default.",
    ),
    click.option("--temperature", type=float, metavar="X", help="0 is greedy."),
    click.option("--top-p", type=float, metavar="P", help="Keep the smallest set whose probability reaches this."),
    click.option("--top-k", type=click.IntRange(0), metavar="N", help="Keep this many of the most probable; 0 is all."),
    click.option("--min-p", type=float, metavar="P", help="Keep those at least this fraction of the most probable."),
    click.option("--repetition-penalty", type=float, metavar="X", help="Above 1: avoid tokens of prompt and answer."),
    click.option("--presence-penalty", type=float, metavar="X", help="Above 0: avoid tokens of the answer."),
    click.option("--frequency-penalty", type=float, metavar="X", help="Above 0: avoid them the more often they came."),
    click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="N", help="Same seed, same draw."),
    click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be given several times."),
    click.option(
        "--stop-token-id", multiple=True, type=click.IntRange(0, 2**32 - 1), metavar="ID", help="Stop after this token."
    ),
    click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end tokens."),
)
