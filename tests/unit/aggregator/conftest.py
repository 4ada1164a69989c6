"""Every test of the combiner runs over both executions of its policy: Python's and, where it is built, the native."""

import pytest
from support.native_combiner import combiners


@pytest.fixture(params=combiners(), ids=lambda each: each.__name__, autouse=True)
def _execution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests write `Combiner`; this is which one that is."""
    monkeypatch.setattr(request.module, "Combiner", request.param)
