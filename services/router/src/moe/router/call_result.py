"""What a layer call's end means to its rows: pure functions from outcomes to results.

A missing part touches only its own rows. Under RENORMALISE they are degraded, and lost where no other part touched them
either; under WAIT and FAIL they are lost. What is lost carries the error that its request ends with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from moe.router.groups import Fleet
from moe.runtime.errors import DeadlineExceeded, MoeError, Unavailable
from moe.wire.port import CallFailed, Combined, LayerCall, MissingPart, MissingPolicy
from torch import Tensor


@dataclass(frozen=True)
class RowTrouble:
    """Rows (of the call's hidden states, int64 [rows]) that a missing part touches. error: None if only degraded."""

    rows: Tensor
    reason: str
    error: MoeError | None = None


@dataclass(frozen=True)
class LayerResult:
    """rows [tokens, hidden]; the content of a row whose trouble has an error means nothing."""

    rows: Tensor
    troubles: tuple[RowTrouble, ...] = ()


@dataclass(frozen=True)
class CallFacts:
    """What the router knows at a call's end. groups: part -> name. last: part -> its last failure, empty if none."""

    call: LayerCall
    groups: Mapping[int, str]
    last: Mapping[int, str]
    timeout_s: float


def combined_result(facts: CallFacts, outcome: Combined, fleet: Fleet) -> LayerResult:
    """The result of a call that was answered, perhaps without some of its parts."""
    if not outcome.missing:
        return LayerResult(outcome.rows)
    index = {part.part: part.token_index.long() for part in facts.call.parts}
    troubles: list[RowTrouble] = []
    for missing in outcome.missing:
        rows = index[missing.part]
        reason = f"layer {facts.call.layer}: group {facts.groups[missing.part]}: {_why(facts, missing)}"
        if facts.call.policy is MissingPolicy.RENORMALISE:
            troubles.append(RowTrouble(rows, reason))
            lost = rows[~_touched(facts.call, {m.part for m in outcome.missing})[rows]]
            if len(lost):
                error = Unavailable(f"{reason}; no other expert of the token is there to stand in")
                troubles.append(RowTrouble(lost, reason, error))
        else:
            troubles.append(RowTrouble(rows, reason, _error(facts, missing.part, reason, fleet)))
    return LayerResult(outcome.rows, tuple(troubles))


def failed_result(facts: CallFacts, outcome: CallFailed) -> LayerResult:
    """The result of a call that could not be answered: every row in it is lost."""
    last = "; ".join(f"group {facts.groups[part]}: {text}" for part, text in facts.last.items() if text)
    reason = f"layer {facts.call.layer}: {outcome.message}" + (f" ({last})" if last else "")
    return all_lost(facts.call, DeadlineExceeded(reason) if outcome.deadline else MoeError(reason))


def overdue_result(facts: CallFacts) -> LayerResult:
    """The result of a call whose aggregator stayed silent beyond the deadline."""
    silent = CallFailed(f"no answer from the aggregator within {facts.timeout_s:g} s", deadline=True)
    return failed_result(facts, silent)


def without_parts(facts: CallFacts, refused: Mapping[int, str]) -> tuple[LayerCall, tuple[RowTrouble, ...]]:
    """The call that is left when every replica of these parts calls them malformed, and whom that costs.

    refused: part -> what they say. No policy excuses it: something is configured or programmed wrongly.
    """
    troubles = []
    for part in facts.call.parts:
        if part.part in refused:
            reason = f"layer {facts.call.layer}: group {facts.groups[part.part]}: {refused[part.part]}"
            troubles.append(RowTrouble(part.token_index.long(), reason, MoeError(reason)))
    left = tuple(part for part in facts.call.parts if part.part not in refused)
    return replace(facts.call, parts=left), tuple(troubles)


def all_lost(call: LayerCall, error: MoeError) -> LayerResult:
    """Every row that is in any part is lost with this error."""
    rows = torch.nonzero(_touched(call, set())).flatten()
    return LayerResult(torch.zeros_like(call.hidden), (RowTrouble(rows, error.message, error),))


def _touched(call: LayerCall, without: set[int]) -> Tensor:
    """bool [tokens]: rows that any part but these touches."""
    touched = torch.zeros(len(call.hidden), dtype=torch.bool)
    for part in call.parts:
        if part.part not in without:
            touched[part.token_index.long()] = True
    return touched


def _why(facts: CallFacts, missing: MissingPart) -> str:
    last = facts.last.get(missing.part, "")
    return f"{missing.reason} (last failure: {last})" if last and last not in missing.reason else missing.reason


def _error(facts: CallFacts, part: int, reason: str, fleet: Fleet) -> MoeError:
    if facts.call.policy is MissingPolicy.WAIT and fleet.ready(facts.groups[part]):
        return DeadlineExceeded(f"{reason}; waited {facts.timeout_s:g} s (--layer-timeout-s)")
    return Unavailable(reason)
