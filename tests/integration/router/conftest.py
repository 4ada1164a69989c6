"""A tiny package with a tokenizer, and deployments of it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from moe.models.convert import convert_checkpoint
from support.families import family_config, load_reference, write_checkpoint
from support.router_run import Deployment
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 264
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the template's marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=TEMPLATE)


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("router") / "checkpoint"
    write_checkpoint("mixtral", out, config=family_config("mixtral", vocab_size=VOCABULARY, eos_token_id=256))
    byte_tokenizer().save_pretrained(out)
    return out


@pytest.fixture(scope="package")
def package(checkpoint: Path) -> Path:
    return convert_checkpoint(checkpoint, checkpoint.with_name("tiny"), name="tiny")


@pytest.fixture(scope="package")
def reference(checkpoint: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    return load_reference(checkpoint)


@pytest.fixture(scope="package")
def folder() -> Iterator[Path]:
    """Short enough for unix sockets."""
    made = Path(tempfile.mkdtemp(prefix="moe-router-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="package")
def processes(package: Path, folder: Path) -> Iterator[Deployment]:
    """Group 0 has two replicas, group 1 has one.

    router-0 adds by itself and waits for missing experts; router-1 has agg-0 add and fails at once.
    """
    made = Deployment(package, folder, replicas=(2, 1))
    chunks = ("--prefill-chunk", "5", "--score-chunk", "4", "--max-running", "3")
    try:
        made.start_router("router-0", "--aggregator", "embedded", *chunks)
        made.start_router("router-1", "--aggregator", "directory", "--missing-policy", "fail")
        made.restore()
        yield made
    finally:
        made.close()


@pytest.fixture
def deployment(processes: Deployment) -> Deployment:
    """Everything runs and serves, whatever the test before has done to it."""
    processes.restore()
    for name in ("router-0", "router-1"):
        processes.wait(processes.address(name))
        processes.wait_without("", name)
    return processes
