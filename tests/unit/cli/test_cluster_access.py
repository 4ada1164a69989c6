"""Which cluster a command talks to, and what it says where there is no way to one."""

import json

import pytest
from moe.cli.addresses import Wanted
from moe.cli.cluster.access import configured, inside
from moe.cli.cluster.place import Place
from moe.cli.errors import UsageError


def write_kubeconfig(path, current="dev", contexts=("dev", "prod")):
    """Of clusters that nobody asks."""
    places = {each: {"cluster": each, "user": "me", "namespace": f"{each}-ns"} for each in contexts}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": each, "cluster": {"server": f"https://{each}:6443"}} for each in contexts],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": each, "context": place} for each, place in places.items()],
        **({"current-context": current} if current else {}),
    }
    path.write_text(json.dumps(document))
    return {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("place", "host", "namespace"),
    [
        (Place(model="demo"), "https://dev:6443", "dev-ns"),
        (Place(context="prod"), "https://prod:6443", "prod-ns"),
        (Place(context="prod", namespace="moe"), "https://prod:6443", "moe"),
    ],
)
async def test_a_context_and_a_namespace_that_are_not_given_are_the_kubeconfigs(tmp_path, place, host, namespace):
    configuration, site = await configured(write_kubeconfig(tmp_path / "config"), place)
    assert (configuration.host, site.namespace) == (host, namespace)


async def test_a_context_that_is_not_there_is_named_with_those_that_are(tmp_path):
    environ = write_kubeconfig(tmp_path / "config")
    with pytest.raises(UsageError, match=r"there is no context 'test' in .*; there are: dev, prod"):
        await configured(environ, Place(context="test"))


async def test_a_kubeconfig_without_a_current_context_serves_with_one_that_is_named(tmp_path):
    environ = write_kubeconfig(tmp_path / "config", current="")
    with pytest.raises(UsageError, match="choose one with --context: dev, prod"):
        await configured(environ, Place(model="demo"))
    assert (await configured(environ, Place(context="dev")))[1].context == "dev"


@pytest.mark.parametrize("text", [None, "- a\n- b\n", "{", "apiVersion: v1\n"])
async def test_what_is_no_kubeconfig_is_said_with_the_remedy(tmp_path, text):
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"config.*(set KUBECONFIG|choose one)"):
        await configured({"KUBECONFIG": str(file)}, Place(model="demo"))


def test_a_pod_talks_to_its_own_cluster_unless_it_is_told_otherwise():
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert inside(environ, Place(model="demo"))
    assert not inside(environ, Place(context="prod"))
    assert not inside({**environ, "KUBECONFIG": "/config"}, Place(model="demo"))
    assert not inside({}, Place(model="demo"))


@pytest.mark.parametrize("here", [{"address": "h:1"}, {"name": "demo"}])
def test_a_router_here_and_a_model_there_exclude_each_other(here):
    with pytest.raises(UsageError, match=f"--{next(iter(here))} is of this machine"):
        Wanted(**here, place=Place(model="demo"))
