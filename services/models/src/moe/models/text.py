"""Text to token ids and back: a package's tokenizer, its chat template, and decoding one token at a time.

Wraps transformers' AutoTokenizer, offline and without any code from the package; the hot paths go straight to the
tokenizers library behind it, which is safe to use from several threads at once. A stream of single tokens never yields
half a UTF-8 character: bytes wait until their character is whole, and bytes that can't become one turn into U+FFFD.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moe.models.errors import ModelsError

if TYPE_CHECKING:
    from moe.models.package import Package


class TextError(ModelsError):
    """A text, chat or tokenizer that can't be used; the message says why."""


class TextStream(Protocol):
    """Turns the tokens of one sequence to text as they come."""

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, else nothing."""


class Tokenizer:
    """A package's tokenizer. Special tokens are part of `decode` and left out of a stream."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: transformers' own object, backed by the tokenizers library."""
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._templates = tokenizer
        self._special = frozenset(int(i) for i in tokenizer.all_special_ids)
        self._added: dict[int, str] = {
            i: added.content for i, added in self._backend.get_added_tokens_decoder().items()
        }
        self._byte_level = _uses(self._backend, "ByteLevel")
        self._fallback_bytes = _fallback_bytes(self._backend) if _uses(self._backend, "ByteFallback") else {}
        self.has_chat_template: bool = tokenizer.chat_template is not None

    @classmethod
    def open(cls, directory: Path) -> "Tokenizer":
        """Loads the tokenizer of a Hugging Face directory. Raises TextError when there is none that can be used."""
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
            raise TextError(f"{directory}: the tokenizer can't be loaded: {error}") from error
        if getattr(loaded, "backend_tokenizer", None) is None:
            raise TextError(f"{directory}: {type(loaded).__name__} has no tokenizer.json; convert it to one first")
        return cls(loaded)

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text with the special tokens the tokenizer adds by itself. Raises TextError."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a chat, ready for the assistant's answer. Raises TextError when the template refuses it."""
        if not self.has_chat_template:
            raise TextError("this model has no chat template; send the prompt as text or token ids")
        from jinja2 import TemplateError

        chat = [dict(message) for message in messages]
        try:
            text = self._templates.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TextError(f"the model's chat template refuses these messages: {error}") from error
        return self._encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens included; ids without a token are nothing."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def token(self, token: int) -> str:
        """One id as the vocabulary writes it; the number itself when there is no such token."""
        return str(self._backend.id_to_token(token) or token)

    def stream(self, previous: int | None = None) -> TextStream:
        """A stream for one sequence that goes on after the token `previous`, None at the start of a text."""
        if self._byte_level:
            return _ByteStream(self)
        return _PieceStream(self, previous)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeError) as error:
            raise TextError(f"the text is not valid Unicode: {error}") from error

    def _is_special(self, token: int) -> bool:
        return token in self._special

    def _bytes(self, token: int) -> bytes:
        """The bytes of a token of a byte-level vocabulary."""
        if token in self._added:
            return self._added[token].encode()
        written: str | None = self._backend.id_to_token(token)
        if written is None:
            return b""
        table = _byte_of_character()
        if all(character in table for character in written):
            return bytes(table[character] for character in written)
        return written.encode()

    def _fallback_byte(self, token: int) -> bytes | None:
        return self._fallback_bytes.get(token)


class _ByteStream:
    """Byte-level vocabularies (GPT-2 and its heirs): every token is a run of bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if self._tokenizer._is_special(token):
            return self.flush()
        return self._characters.decode(self._tokenizer._bytes(token))

    def flush(self) -> str:
        return _finish(self._characters)


class _PieceStream:
    """Vocabularies of pieces, whose spacing depends on the neighbour, perhaps with single bytes as a fall-back."""

    def __init__(self, tokenizer: Tokenizer, previous: int | None) -> None:
        self._tokenizer = tokenizer
        self._context = [] if previous is None else [previous]
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        byte = self._tokenizer._fallback_byte(token)
        if byte is not None:
            self._context = [token]
            return self._characters.decode(byte)
        pending = self.flush()
        if self._tokenizer._is_special(token):
            return pending
        before = self._tokenizer.decode(self._context)
        after = self._tokenizer.decode([*self._context, token])
        self._context = [token]
        return pending + after[len(before) :]

    def flush(self) -> str:
        return _finish(self._characters)


def load_tokenizer(package: "Package") -> Tokenizer | None:
    """The package's tokenizer; None for a package that has none and serves token ids only. Raises TextError."""
    if not package.manifest.has_tokenizer:
        return None
    return Tokenizer.open(package.backbone_dir)


def _finish(characters: codecs.IncrementalDecoder) -> str:
    rest = characters.decode(b"", final=True)
    characters.reset()
    return rest


def _uses(backend: Any, decoder: str) -> bool:
    """Whether a tokenizers object decodes with a step of this type, alone or in a sequence."""
    described = json.loads(backend.to_str()).get("decoder") or {}
    steps = described.get("decoders", [described])
    return any(step.get("type") == decoder for step in steps)


def _fallback_bytes(backend: Any) -> dict[int, bytes]:
    """Token id -> its byte, for the 256 tokens written <0x00> ... <0xFF>."""
    ids = {value: backend.token_to_id(f"<0x{value:02X}>") for value in range(256)}
    return {token: bytes([value]) for value, token in ids.items() if token is not None}


@cache
def _byte_of_character() -> dict[str, int]:
    """Character -> byte in the alphabet of byte-level vocabularies.

    Visible characters of Latin-1 stand for themselves, the other bytes for U+0100, U+0101, ... in ascending order
    (GPT-2's released encoder, as the tokenizers library has it).
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in visible} | {chr(0x100 + i): value for i, value in enumerate(hidden)}
