"""The whole expert process on a tiny package: ready, working, drained."""

import signal
from collections.abc import Iterator

import pytest
import torch
from moe.api.expert.v1 import expert_pb2
from moe.kernels.ffn import ffn
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
from support.tiny_package import HIDDEN, SILU, expert_weights, write_package


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertProcess]:
    """One process that the tests below share; each uses streams of its own."""
    directory = tmp_path_factory.mktemp("expert")
    with expert_process(write_package(directory / "tiny"), directory) as running:
        running.wait_ready()
        yield running


def test_a_dispatch_is_pushed_to_its_aggregator_as_the_weighted_sum(expert):
    rows = draw_rows(2, HIDDEN, torch.float32)
    with collect(expert) as aggregator, dispatch(expert) as router:
        router.send(request(rows, [(0, 1, 0.25), (1, 1, 0.5), (1, 2, 0.5)], layer=2))
        got = partial_rows(aggregator.next())
    first, second = (ffn(rows.double(), widened(expert_weights(2, each)), SILU, backend="reference") for each in (1, 2))
    want = torch.stack([0.25 * first[0], 0.5 * first[1] + 0.5 * second[1]])
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


def test_it_describes_itself(expert):
    answer = expert.describe()
    told = (answer.model, list(answer.experts), answer.kernel, answer.deterministic, answer.facts["dtype"])
    assert told == ("tiny", [0, 1, 2, 3], "torch", False, "float32")


def test_its_log_tells_the_probes_progress(expert):
    assert "probed 7 of 7 weights" in expert.log.read_text()


def test_on_sigterm_it_finishes_what_it_accepted_and_exits_with_0(tmp_path):
    with expert_process(write_package(tmp_path / "tiny"), tmp_path) as running:
        running.wait_ready()
        with collect(running) as aggregator, dispatch(running) as router:
            for _ in range(20):
                router.send(request(draw_rows(200, HIDDEN, torch.float32), [(row, 1, 1.0) for row in range(200)]))
            aggregator.next()
            running.terminate()
            statuses = {router.next().receipt.status for _ in range(20)}
        code = running.exit_code()
    assert statuses <= {expert_pb2.PART_STATUS_PUSHED, expert_pb2.PART_STATUS_DRAINING}
    assert code == 0


def test_on_sigint_it_exits_with_130(tmp_path):
    with expert_process(write_package(tmp_path / "tiny"), tmp_path) as running:
        running.wait_ready()
        running.process.send_signal(signal.SIGINT)
        assert running.exit_code() == 130


def test_it_leaves_no_socket_behind(tmp_path):
    with expert_process(write_package(tmp_path / "tiny"), tmp_path) as running:
        running.wait_ready()
        running.terminate()
        running.exit_code()
    assert not (tmp_path / "expert.sock").exists()


def test_two_deterministic_processes_give_a_row_the_same_bits_in_different_batches(tmp_path):
    package, rows = write_package(tmp_path / "tiny", dtype="bfloat16"), draw_rows(21, HIDDEN, torch.bfloat16)
    answers = []
    for index, kept in enumerate(([20], range(21))):
        (tmp_path / str(index)).mkdir()
        with expert_process(package, tmp_path / str(index), "--deterministic") as running:
            running.wait_ready()
            with collect(running) as aggregator, dispatch(running) as router:
                router.send(request(rows[list(kept)], [(place, 2, 0.5) for place in range(len(kept))]))
                answers.append(partial_rows(aggregator.next())[-1].clone())
    assert torch.equal(*answers)


def test_a_refused_package_ends_the_process_with_2_and_one_line(tmp_path):
    code, errors = run_to_end(tmp_path / "nowhere", f"unix:{tmp_path}/expert.sock")
    assert (code, errors) == (2, f"error: there is no directory {tmp_path / 'nowhere'}\n")
