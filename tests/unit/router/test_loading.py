"""What a router makes of a package and its settings before it serves."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from moe.models.package import Package
from moe.router.loading import LoadedModel, load_model, model_message, open_package
from moe.router.settings import RouterSettings, SchedulingSettings
from moe.runtime.errors import StartupError
from moe.runtime.server import ServerSettings
from moe.runtime.telemetry import TelemetrySettings
from support.families import write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package("mixtral", tmp_path_factory.mktemp("loading") / "tiny", name="tiny")


def settings_for(package: Path, message_bytes: int = 2**26, **scheduling: int) -> RouterSettings:
    return RouterSettings(
        server=ServerSettings(listen="unix:/nowhere", max_message_bytes=message_bytes),
        telemetry=TelemetrySettings(),
        scheduling=SchedulingSettings(**scheduling),
        package=package,
        name="router-0",
        discovery=f"file:{package}/directory.json",
    )


def loaded(package: Path, **scheduling: int) -> LoadedModel:
    return load_model(Package.open(package), settings_for(package, **scheduling))


@pytest.mark.parametrize(
    ("scheduling", "context"),
    [({}, 512), ({"max_context": 100}, 100), ({"kv_tokens": 50}, 50)],
    ids=["the model's own", "as set", "as the cache allows"],
)
def test_the_context_is_the_least_of_three_bounds(package: Path, scheduling: dict[str, int], context: int) -> None:
    assert loaded(package, **scheduling).limits.max_context == context


def test_the_cache_promises_no_more_than_its_slots_hold(package: Path) -> None:
    assert loaded(package, max_running=2, max_context=100).schedule.kv_tokens == 200


def test_the_model_is_described_by_package_and_limits(package: Path) -> None:
    opened = Package.open(package)
    message = model_message(opened, load_model(opened, settings_for(package)))
    facts = (message.name, message.family, message.vocabulary, message.experts, message.moe_layers, message.topk)
    assert facts == ("tiny", "mixtral", 128, 8, 3, 2)
    assert (message.manifest_sha256, message.has_tokenizer, message.max_context) == (opened.manifest_sha256, False, 512)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_the_model_is_described_with_the_kernels_that_run(package: Path, kernel: Literal["torch", "native"]) -> None:
    opened = Package.open(package)
    settings = replace(settings_for(package), linear_kernel=kernel, attention_kernel=kernel)
    message = model_message(opened, load_model(opened, settings))
    assert message.linear_kernel.startswith(f"{kernel} (")
    assert message.attention_kernel == kernel


def test_a_cache_beyond_memory_names_the_flags(package: Path) -> None:
    # 768 bytes a token: 2**22 slots of 512 tokens are 1.5 TiB.
    with pytest.raises(StartupError, match=r"cache: 4194304 slots.*--max-running, --max-context"):
        loaded(package, message_bytes=2**31 - 1, max_running=2**22)


def test_a_step_too_long_for_a_message_names_the_flags(package: Path) -> None:
    with pytest.raises(StartupError, match=r"a step of 1000080 rows .*--prefill-chunk.* takes 256020480 bytes"):
        loaded(package, prefill_chunk=1_000_000)


def test_a_damaged_file_is_named(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(package, broken)
    weights = next((broken / "backbone").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(StartupError, match=f"file {weights}: holds"):
        open_package(settings_for(broken))


def test_a_generation_config_out_of_range_is_named(package: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(package, odd)
    (odd / "backbone" / "generation_config.json").write_text('{"do_sample": true, "top_p": 7}')
    with pytest.raises(StartupError, match=r"generation_config.json: top_p: got 7"):
        load_model(Package.open(odd, verify="none"), settings_for(odd))
