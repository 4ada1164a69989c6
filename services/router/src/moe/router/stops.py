"""Text of an answer as it may be shown: stop texts are found across tokens, and what may become one is held back."""

from collections.abc import Sequence

from moe.models.text import TextStream


class StopMatcher:
    """Looks for the stop texts in a text that comes in pieces (Knuth, Morris and Pratt: linear in the text).

    matched: the stop text that was found; the first to be complete, the longest of those complete at one character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Automaton(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is certainly no part of a stop text; after a match what stood before it, then nothing."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            complete = [automaton.stop for automaton in self._stops if automaton.advance(character)]
            if complete:
                self.matched = complete[0]
                self._held = ""
                return buffer[: end - len(complete[0])]
        shown = len(buffer) - max(automaton.state for automaton in self._stops)
        self._held = buffer[shown:]
        return buffer[:shown]

    def flush(self) -> str:
        """What was held back, when the answer ends without completing a stop text."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How much of one stop text the latest characters are. state: characters matched."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._fallback = [0] * len(stop)
        matched = 0
        for place in range(1, len(stop)):
            while matched and stop[place] != stop[matched]:
                matched = self._fallback[matched - 1]
            matched += stop[place] == stop[matched]
            self._fallback[place] = matched

    def advance(self, character: str) -> bool:
        """Takes one character; true when it completes the stop text."""
        while self.state and self.stop[self.state] != character:
            self.state = self._fallback[self.state - 1]
        self.state += self.stop[self.state] == character
        return self.state == len(self.stop)


class AnswerText:
    """Turns drawn tokens to the text that may be shown. stream: None for a model without a tokenizer."""

    def __init__(self, stream: TextStream | None, stops: Sequence[str]) -> None:
        self._stream = stream
        self._matcher = StopMatcher(stops)

    @property
    def stop_match(self) -> str | None:
        """The stop text that ended the answer."""
        return self._matcher.matched

    def push(self, token: int) -> str:
        """More text to show; may set `stop_match`."""
        return "" if self._stream is None else self._matcher.push(self._stream.push(token))

    def finish(self) -> str:
        """The rest, at the end of an answer; may still set `stop_match`."""
        if self._stream is None or self.stop_match is not None:
            return ""
        return self._matcher.push(self._stream.flush()) + self._matcher.flush()
