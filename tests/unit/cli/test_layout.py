import itertools
from pathlib import Path

import pytest
from moe.cli.errors import UsageError
from moe.cli.supervise.layout import LONGEST_SOCKET_PATH, Options, Places, lay_out
from moe.cli.supervise.spec import Role
from moe.operator.planner import ModelFacts, Placement, Wishes, plan

MODEL = ModelFacts("demo", {0: 4, 1: 4}, topk=2)
PLACES = Places(Path("/m/demo"), Path("/run/moe/demo"), Path("/run/moe/demo/directory.json"))


def laid_out(wishes=Wishes(cores=2), places=PLACES, options=Options()):  # noqa: B008 - frozen
    ports = itertools.count(20000)
    return lay_out(plan(MODEL, wishes), places, options, lambda: next(ports))


def by_name(specs):
    return {spec.name: spec for spec in specs}


def flag(spec, name):
    return spec.argv[spec.argv.index(name) + 1]


def test_every_expert_group_an_aggregator_and_a_router_are_processes():
    assert list(by_name(laid_out())) == ["demo-000-0", "demo-001-0", "demo-002-0", "demo-003-0", "agg-0", "router-0"]


def test_an_expert_is_told_its_ids_group_and_threads():
    spec = by_name(laid_out(Wishes(cores=2, groups=2)))["demo-g001-0"]
    assert [flag(spec, name) for name in ("--experts", "--group", "--threads")] == ["2,3", "demo-g001", "1"]


def test_what_the_directory_says_of_an_expert_is_what_it_is_told():
    spec = by_name(laid_out())["demo-003-0"]
    assert (spec.role, spec.group, spec.experts, spec.endpoint) == (
        Role.EXPERT,
        "demo-003",
        (3,),
        flag(spec, "--listen"),
    )


def test_replicas_of_a_group_listen_at_different_places():
    specs = laid_out(Wishes(cores=2, replicas=2))
    assert len({spec.endpoint for spec in specs}) == len(specs)


def test_processes_listen_on_unix_sockets_of_their_name():
    assert by_name(laid_out())["demo-000-0"].endpoint == "unix:/run/moe/demo/demo-000-0.sock"


def test_an_aggregator_process_listens_on_the_loopback_interface():
    assert by_name(laid_out())["agg-0"].endpoint == "127.0.0.1:20000"


def test_a_sidecar_listens_on_a_unix_socket():
    specs = by_name(laid_out(Wishes(cores=2, aggregator=Placement.SIDECAR)))
    assert specs["agg-0"].endpoint == "unix:/run/moe/demo/agg-0.sock"


def test_an_embedded_aggregator_is_no_process_and_the_router_is_told():
    specs = by_name(laid_out(Wishes(cores=2, aggregator=Placement.EMBEDDED)))
    assert ("agg-0" in specs, flag(specs["router-0"], "--aggregator")) == (False, "embedded")


def test_a_router_with_aggregators_finds_them_in_the_directory():
    router = by_name(laid_out())["router-0"]
    assert [flag(router, name) for name in ("--aggregator", "--discovery")] == ["directory", f"file:{PLACES.directory}"]


def test_tcp_gives_every_process_a_port_of_its_own():
    specs = laid_out(places=Places(PLACES.package, PLACES.folder, PLACES.directory, tcp=True))
    assert [spec.endpoint for spec in specs] == [f"127.0.0.1:{port}" for port in range(20000, 20006)]


def test_the_router_listens_where_its_owner_says():
    places = Places(PLACES.package, PLACES.folder, PLACES.directory, listen="0.0.0.0:50051")
    router = by_name(laid_out(places=places))["router-0"]
    assert (router.endpoint, flag(router, "--listen")) == ("0.0.0.0:50051", "0.0.0.0:50051")


def test_options_reach_the_parts_they_concern():
    options = Options(deterministic=True, dtype="float32", missing_policy="fail", layer_timeout_s=2.5, kv_tokens=640)
    specs = by_name(laid_out(options=options))
    router = specs["router-0"]
    assert [flag(router, name) for name in ("--missing-policy", "--layer-timeout-s", "--kv-tokens", "--dtype")] == [
        "fail",
        "2.5",
        "640",
        "float32",
    ]


def test_deterministic_mode_reaches_every_process():
    assert all("--deterministic" in spec.argv for spec in laid_out(options=Options(deterministic=True)))


def test_what_is_not_set_is_left_to_the_parts():
    words = {word for spec in laid_out() for word in spec.argv}
    assert words.isdisjoint({"--deterministic", "--dtype", "--missing-policy", "--layer-timeout-s", "--kv-tokens"})


def folder_of(length):
    return Path("/" + "f" * (length - 1))


def test_a_socket_whose_name_would_be_too_long_gets_a_number():
    folder = folder_of(LONGEST_SOCKET_PATH - len("/0.sock"))
    specs = laid_out(Wishes(cores=2, groups=1), Places(PLACES.package, folder, PLACES.directory))
    assert specs[0].endpoint == f"unix:{folder}/1.sock"


def test_a_folder_too_long_for_any_socket_is_refused_with_the_remedy():
    folder = folder_of(LONGEST_SOCKET_PATH - len("/0.sock") + 1)
    with pytest.raises(UsageError, match="set XDG_RUNTIME_DIR to a shorter folder, or use --tcp"):
        laid_out(places=Places(PLACES.package, folder, PLACES.directory))
