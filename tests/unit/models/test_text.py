"""The tokenizer of a package: the same ids as transformers, and streams that never split a character."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.models.text import TextError, Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Grüße aus Köln, 東京 and 🦊🦊!", "def f(x):\n    return x"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m['role']) }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_tokens([AddedToken("[tool]", special=False)])
    begin = backend.token_to_id("<|begin|>")
    backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return backend


def byte_fallback() -> Backend:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    words += ["▁", "▁The", "▁quick", "fox", "▁fox", "s", "T", "h", "e", "a", "b"]
    backend = Backend(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def save(backend: Backend, path: Path, **settings: object) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    tokenizer.save_pretrained(path)
    return PreTrainedTokenizerFast.from_pretrained(path)


@pytest.fixture(scope="module")
def bytes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bytes")
    save(byte_level(), path, chat_template=TEMPLATE, eos_token="<|end|>", bos_token="<|begin|>", model_max_length=8)
    return path


@pytest.fixture(scope="module")
def pieces_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces")
    save(byte_fallback(), path, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return path


@pytest.fixture(scope="module")
def by_bytes(bytes_dir: Path) -> Tokenizer:
    return Tokenizer.open(bytes_dir)


@pytest.fixture(scope="module")
def by_pieces(pieces_dir: Path) -> Tokenizer:
    return Tokenizer.open(pieces_dir)


def streamed(tokenizer: Tokenizer, ids: list[int], previous: int | None = None) -> str:
    stream = tokenizer.stream(previous)
    return "".join(stream.push(token) for token in ids) + stream.flush()


@pytest.mark.parametrize("text", [*TEXTS, "", "a" * 500, "e\u0301 \u200b"])
def test_text_has_the_ids_that_transformers_gives(bytes_dir: Path, text: str) -> None:
    assert Tokenizer.open(bytes_dir).encode(text) == PreTrainedTokenizerFast.from_pretrained(bytes_dir)(text).input_ids


def test_a_chat_goes_through_the_models_template(by_bytes: Tokenizer) -> None:
    ids = by_bytes.encode_chat([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi 🦊"}])
    assert by_bytes.decode(ids) == "<|system|>Be kind.<|end|><|user|>Hi 🦊<|end|><|assistant|>"


def test_a_role_the_template_does_not_know_is_named(bytes_dir: Path) -> None:
    with pytest.raises(TextError, match="unknown role robot"):
        Tokenizer.open(bytes_dir).encode_chat([{"role": "robot", "content": "Hi"}])


def test_a_chat_without_a_template_is_refused(pieces_dir: Path) -> None:
    with pytest.raises(TextError, match="no chat template"):
        Tokenizer.open(pieces_dir).encode_chat([{"role": "user", "content": "Hi"}])


def test_a_lone_surrogate_is_refused(bytes_dir: Path) -> None:
    with pytest.raises(TextError, match="not valid Unicode"):
        Tokenizer.open(bytes_dir).encode("a\ud800b")


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=str(tmp_path)):
        Tokenizer.open(tmp_path)


@given(text=st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_streamed_text_is_the_text(by_bytes: Tokenizer, text: str) -> None:
    plain = text.replace("<|", "")
    assert streamed(by_bytes, by_bytes.encode(plain)) == plain


def test_no_piece_of_a_stream_is_half_a_character(by_bytes: Tokenizer) -> None:
    fox = [by_bytes._backend.token_to_id(character) for character in "ðŁ¦Ĭ"]  # F0 9F A6 8A, one token each
    stream = by_bytes.stream()
    assert [stream.push(token) for token in fox] == ["", "", "", "🦊"]


def test_bytes_that_never_become_a_character_do_not_wait_forever(by_bytes: Tokenizer) -> None:
    continuation = by_bytes._backend.token_to_id("Ł")  # 9F, which can't start a character
    assert streamed(by_bytes, [continuation] * 3) == "\ufffd" * 3


def test_special_tokens_are_left_out_and_added_words_are_kept(by_bytes: Tokenizer) -> None:
    assert streamed(by_bytes, by_bytes.encode("a<|end|>b[tool]c")) == "ab[tool]c"


def test_an_id_outside_the_vocabulary_is_nothing(by_bytes: Tokenizer) -> None:
    assert (streamed(by_bytes, [100_000]), by_bytes.token(100_000)) == ("", "100000")


def test_fallback_bytes_wait_for_their_character(by_pieces: Tokenizer) -> None:
    euro = [3 + value for value in "€".encode()]
    stream = by_pieces.stream()
    assert [stream.push(token) for token in euro] == ["", "", "€"]


def test_a_character_cut_short_is_marked_before_what_follows(by_pieces: Tokenizer) -> None:
    fox = by_pieces._backend.token_to_id("▁fox")
    assert streamed(by_pieces, [3 + 0xE2, 3 + 0x82, fox]) == "\ufffd fox"


def test_a_piece_keeps_its_space_after_a_prompt_and_loses_it_at_the_start(by_pieces: Tokenizer) -> None:
    the, fox, s = (by_pieces._backend.token_to_id(word) for word in ("▁The", "▁fox", "s"))
    assert (streamed(by_pieces, [the, fox, s]), streamed(by_pieces, [fox, s], previous=the)) == ("The foxs", " foxs")
