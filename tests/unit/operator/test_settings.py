"""How an operator is told what to do."""

import pytest
from moe.operator.settings import read_settings

IMAGE = "--image=registry/moe:1"


def test_flags_are_enough():
    settings = read_settings([IMAGE, "--namespace=here", "--lease-s=5", "--port=0"], {})
    assert (settings.image, settings.namespace, settings.lease_s, settings.port) == ("registry/moe:1", "here", 5.0, 0)


def test_the_environment_gives_what_flags_do_not():
    settings = read_settings(["--port=9"], {"MOE_OPERATOR_IMAGE": "registry/moe:2", "MOE_OPERATOR_PORT": "8"})
    assert (settings.image, settings.port) == ("registry/moe:2", 9)


def test_operators_on_one_machine_are_told_apart():
    assert read_settings([IMAGE], {}).identity != ""
    assert read_settings([IMAGE, "--identity=me"], {}).identity == "me"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--image is missing: name the image"),
        ([IMAGE, "--lease-s=1"], "--lease-s is 1; want 2 to 600 seconds"),
        ([IMAGE, "--lease-s=soon"], "invalid float value"),
        ([IMAGE, "--log-level=loud"], "invalid choice: 'loud'"),
        ([IMAGE, "--namespaces=a,b"], "unrecognized arguments"),
    ],
)
def test_a_bad_setting_is_refused_by_name(capsys, flags, words):
    with pytest.raises(SystemExit) as caught:
        read_settings(flags, {})
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
