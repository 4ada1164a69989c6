"""What a package's generation config says about sampling, read from its JSON without transformers.

Only values that the file states count: the library's own defaults for absent ones (such as top_k = 50) are not the
model's wish. Without `do_sample` the model wishes greedy decoding, whatever temperature stands beside it.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from moe.models.errors import PackageError

if TYPE_CHECKING:
    from moe.models.package import Package

FILE_NAME = "generation_config.json"
_SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_MAX_BYTES = 1 << 20


def generation_defaults(package: "Package") -> Mapping[str, float]:
    """Sampling values by name: temperature, top_p, top_k, min_p, repetition_penalty; absent ones are not in it.

    Raises PackageError for a file that is no JSON object or holds something other than a number there.
    """
    path = package.backbone_dir / FILE_NAME
    if not path.is_file():
        return {}
    try:
        stated = json.loads(path.read_bytes()[:_MAX_BYTES])
    except (OSError, ValueError) as error:
        raise PackageError(f"can't be read: {error}", file=path) from error
    if not isinstance(stated, dict):
        raise PackageError("is no JSON object", file=path)
    names = ["repetition_penalty", *(_SAMPLED if stated.get("do_sample") is True else ())]
    found = {name: stated[name] for name in names if stated.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PackageError(f"{name}: got {value!r}, want a number", file=path)
    return _SAMPLED | found if len(names) > 1 else found
