"""A tokenizer whose token n is the n-th letter from `a` on: what a test writes is what it gets."""

from collections.abc import Mapping, Sequence

from moe.models.text import TextError

END_TEXT = "</s>"


class LetterStream:
    def push(self, token: int) -> str:
        return letters([token])

    def flush(self) -> str:
        return ""


class Letters:
    """Stands in for moe.models.text.Tokenizer. Chats are `role:content;` in a row; the role `robot` is unknown."""

    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return [(ord(character) - ord("a")) % 1000 for character in text]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if any(message["role"] == "robot" for message in messages):
            raise TextError("the model's chat template refuses these messages: unknown role robot")
        return self.encode("".join(message["content"] for message in messages))

    def decode(self, ids: Sequence[int]) -> str:
        return letters(ids)

    def token(self, token: int) -> str:
        return END_TEXT if token == 1 else letters([token])

    def stream(self, previous: int | None = None) -> LetterStream:
        return LetterStream()


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in ids)
