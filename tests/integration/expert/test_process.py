"""The whole expert process on a tiny package: ready, working, drained."""

import urllib.request
from collections.abc import Iterator

import pytest
import torch
from moe.api.expert.v1 import expert_pb2
from moe.expert.compute import compute
from moe.expert.packing import Computation, pack
from moe.expert.weights import load_group, open_package
from moe.kernels.ffn import ffn
from moe.kernels.group_ffn.weights import plain
from moe.models.package import Package
from moe.models.quantise import quantise_package
from support.expert_double import work
from support.expert_process import (
    ExpertProcess,
    collect,
    dispatch,
    expert_process,
    partial_rows,
    request,
    run_to_end,
)
from support.ffn_cases import rows as draw_rows
from support.ffn_cases import widened
from support.ports import free_port
from support.tiny_package import HIDDEN, SILU, expert_weights, write_package


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertProcess]:
    """One process that the tests below share; each uses streams of its own."""
    directory = tmp_path_factory.mktemp("expert")
    package, port = write_package(directory / "tiny"), free_port()
    with expert_process(package, directory, "--metrics-port", str(port)) as running:
        running.wait_ready()
        running.metrics_page = f"http://127.0.0.1:{port}/metrics"
        yield running


def test_a_dispatch_is_pushed_to_its_aggregator_as_the_weighted_sum(expert):
    rows = draw_rows(2, HIDDEN, torch.float32)
    with collect(expert) as aggregator, dispatch(expert) as router:
        router.send(request(rows, [(0, 1, 0.25), (1, 1, 0.5), (1, 2, 0.5)], layer=2))
        got = partial_rows(aggregator.next())
    first, second = (ffn(rows.double(), widened(expert_weights(2, each)), SILU, backend="reference") for each in (1, 2))
    want = torch.stack([0.25 * first[0], 0.5 * first[1] + 0.5 * second[1]])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group_size", [None, 16], ids=["whole channels", "groups of 16"])
def test_a_package_of_bytes_is_served_as_what_they_stand_for(tmp_path, group_size):
    source = Package.open(write_package(tmp_path / "tiny"))
    small = Package.open(quantise_package(source, tmp_path / "small", group_size=group_size).path)
    rows, held = draw_rows(2, HIDDEN, torch.float32), plain(small.expert_weights(1)[2], torch.float64)
    with expert_process(small.path, tmp_path) as running:
        running.wait_ready()
        with collect(running) as aggregator, dispatch(running) as router:
            router.send(request(rows, [(0, 1, 0.25), (1, 1, 0.5)], layer=2))
            got = partial_rows(aggregator.next())
    want = torch.tensor([[0.25], [0.5]]) * ffn(rows.double(), held, SILU, backend="reference")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_pushed_dispatch_is_receipted(expert):
    with collect(expert) as aggregator, dispatch(expert) as router:
        sent = request(draw_rows(1, HIDDEN, torch.float32), [(0, 3, 1.0)])
        router.send(sent)
        aggregator.next()
        receipt = router.next().receipt
    assert (receipt.call_id, receipt.status) == (sent.call_id, expert_pb2.PART_STATUS_PUSHED)


def test_an_expert_that_is_not_held_in_the_layer_is_invalid_by_field(expert):
    with dispatch(expert) as router:
        router.send(request(draw_rows(1, HIDDEN, torch.float32), [(0, 3, 1.0)], layer=2))
        receipt = router.next().receipt
    assert (receipt.status, receipt.message[:12]) == (expert_pb2.PART_STATUS_INVALID, "slot_experts")


def test_the_figures_count_what_was_computed(expert):
    before = expert.stats().expert
    with collect(expert) as aggregator, dispatch(expert) as router:
        router.send(request(draw_rows(3, HIDDEN, torch.float32), [(0, 0, 1.0), (1, 0, 1.0), (2, 3, 1.0)]))
        aggregator.next()
        router.next()
    after = expert.stats().expert
    slots = [after.slots_by_expert[each] - before.slots_by_expert[each] for each in range(4)]
    assert (after.rows - before.rows, slots) == (3, [2, 0, 0, 1])
    assert (after.dispatches - before.dispatches, after.kernel) == (1, expert.describe().kernel)
    assert after.queue_wait_s > before.queue_wait_s
    assert after.rows_per_s > 0


def test_its_metrics_page_shows_the_figures(expert):
    with collect(expert) as aggregator, dispatch(expert) as router:
        router.send(request(draw_rows(1, HIDDEN, torch.float32), [(0, 2, 1.0)]))
        aggregator.next()
        router.next()
    slots = expert.stats().expert.slots_by_expert[2]
    with urllib.request.urlopen(expert.metrics_page) as page:
        assert f'moe_expert_slots_total{{expert="2"}} {float(slots)}' in page.read().decode()


def test_it_describes_itself(expert):
    answer = expert.describe()
    told = (answer.model, list(answer.experts), answer.deterministic, answer.facts["dtype"])
    assert told == ("tiny", [0, 1, 2, 3], False, "float32")


def test_it_tells_the_kernel_that_runs_why_and_what_it_keeps(expert):
    answer = expert.describe()
    assert answer.kernel in {"native", "torch"}
    assert f"{answer.kernel} " in answer.facts["kernel_why"]
    assert int(answer.facts["weights_bytes"]) > 0


def test_its_log_tells_the_probes_progress(expert):
    assert "probed 7 of 7 weights" in expert.log.read_text()


def test_on_sigterm_it_answers_every_dispatch_and_exits_with_0_and_no_socket(tmp_path):
    with expert_process(write_package(tmp_path / "tiny"), tmp_path) as running:
        running.wait_ready()
        with collect(running) as aggregator, dispatch(running) as router:
            for _ in range(20):
                router.send(request(draw_rows(200, HIDDEN, torch.float32), [(row, 1, 1.0) for row in range(200)]))
            aggregator.next()
            running.terminate()
            statuses = {router.next().receipt.status for _ in range(20)}
        code, socket_left = running.exit_code(), (tmp_path / "expert.sock").exists()
    assert statuses <= {expert_pb2.PART_STATUS_PUSHED, expert_pb2.PART_STATUS_DRAINING}
    assert (code, socket_left) == (0, False)


def test_a_deterministic_process_gives_a_row_the_bits_that_it_has_elsewhere_in_another_batch(tmp_path):
    package, rows = write_package(tmp_path / "tiny", dtype="bfloat16"), draw_rows(21, HIDDEN, torch.bfloat16)
    with expert_process(package, tmp_path, "--deterministic") as running:
        running.wait_ready()
        with collect(running) as aggregator, dispatch(running) as router:
            router.send(request(rows, [(row, 2, 0.5) for row in range(21)]))
            there = partial_rows(aggregator.next())[20]
    group = pack(load_group(open_package(package), [2]), Computation(deterministic=True))
    here = compute([work(rows[20:], [(0, 2, 0.5)])], group).partials[0][0]
    assert torch.equal(there, here)


def test_a_refused_package_ends_the_process_with_2_and_one_line(tmp_path):
    code, errors = run_to_end(tmp_path / "nowhere", f"unix:{tmp_path}/expert.sock")
    assert (code, errors) == (2, f"error: there is no directory {tmp_path / 'nowhere'}\n")
