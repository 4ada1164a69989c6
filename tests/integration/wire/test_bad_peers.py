"""Peers that send nonsense, or do not read: a clear status for them, and nothing for the others."""

from collections.abc import Iterator, Sequence

import grpc
import pytest
import torch
from moe.api.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from moe.api.expert.v1 import expert_pb2, expert_pb2_grpc
from moe.runtime.server_settings import client_options
from moe.wire.port import WorkItem
from moe.wire.settings import WireSettings
from support.layer_calls import HIDDEN, toy_call
from support.wire_stage import GROUPS, Stage, assert_adds_up, three_groups, wait_until

Combine = aggregator_pb2.CombineRequest
NONSENSE = b"\xff\xff\xff\xff nonsense"


def status_of(responses: Iterator[object]) -> tuple[grpc.StatusCode, str]:
    """How a stream ends."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in responses:
            pass
    return caught.value.code(), caught.value.details()


def send_bytes(endpoint: str, method: str) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(endpoint, client_options()) as channel:
        call = channel.stream_stream(method, request_serializer=bytes, response_deserializer=bytes)
        return status_of(call(iter([NONSENSE]), timeout=20))


def combine(endpoint: str, *messages: Combine) -> tuple[grpc.StatusCode, str]:
    with grpc.insecure_channel(endpoint, client_options()) as channel:
        return status_of(aggregator_pb2_grpc.AggregatorServiceStub(channel).Combine(iter(messages), timeout=20))


@pytest.mark.parametrize("method", ["Dispatch", "Collect"])
def test_bytes_that_are_no_message_end_only_their_own_stream(stage: Stage, method: str) -> None:
    attempts = three_groups(stage)
    code, _ = send_bytes(stage.experts[0].endpoint, f"/moe.expert.v1.ExpertService/{method}")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    call = toy_call(GROUPS)
    assert_adds_up(attempts.run(call), call)


def test_an_aggregator_survives_bytes_that_are_no_message(apart: Stage) -> None:
    attempts = three_groups(apart)
    code, _ = send_bytes(apart.aggregators[0].endpoint, "/moe.aggregator.v1.AggregatorService/Combine")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    call = toy_call(GROUPS)
    assert_adds_up(attempts.run(call), call)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([Combine(plan=aggregator_pb2.Plan())], "the first message of a Combine stream has to be hello"),
        ([Combine(hello=aggregator_pb2.Hello(router="r")), Combine()], "kind: got nothing, want plan"),
        ([Combine(hello=aggregator_pb2.Hello(router="r"))] * 2, "kind: got hello, want plan"),
    ],
)
def test_a_combine_stream_out_of_order_is_told_so(apart: Stage, messages: Sequence[Combine], complaint: str) -> None:
    three_groups(apart)
    code, details = combine(apart.aggregators[0].endpoint, *messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in details


@pytest.mark.parametrize("name", ["", "a" * 257])
def test_a_collector_needs_a_name(stage: Stage, name: str) -> None:
    expert = stage.expert(0, 1)
    with grpc.insecure_channel(expert.endpoint, client_options()) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        code, details = status_of(stub.Collect(iter([expert_pb2.CollectRequest(aggregator=name)]), timeout=20))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"aggregator: got {len(name)} characters" in details


def test_of_two_collectors_with_one_name_the_newer_stays(stage: Stage) -> None:
    expert = stage.expert(0, 1)
    request = expert_pb2.CollectRequest(aggregator="agg-0")
    with grpc.insecure_channel(expert.endpoint, client_options()) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        first = stub.Collect(iter([request]), timeout=20)
        next(first)
        second = stub.Collect(iter([request]), timeout=20)
        subscribed = next(second).subscribed
        code, details = status_of(first)
    assert subscribed.instance == expert.instance
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "another Collect stream named 'agg-0' was opened" in details


def _dispatches(count: int, rows: int) -> Iterator[expert_pb2.DispatchRequest]:
    from moe.runtime.tensors import to_message

    for number in range(count):
        yield expert_pb2.DispatchRequest(
            call_id=number,
            layer=0,
            part=0,
            aggregator="deaf",
            rows=to_message(torch.zeros(rows, HIDDEN)),
            slot_rows=to_message(torch.arange(rows, dtype=torch.int32)),
            slot_experts=to_message(torch.zeros(rows, dtype=torch.int32)),
            slot_weights=to_message(torch.ones(rows)),
        )


def _zeros(item: WorkItem) -> torch.Tensor:
    return torch.zeros_like(item.rows)


def test_parts_for_an_aggregator_that_does_not_read_fail_and_take_no_memory(stage: Stage) -> None:
    rows, bound = 16384, 4 * 2**20  # half a mebibyte a part
    expert = stage.expert(0, settings=WireSettings(max_outbox_bytes=bound), max_queued_rows=2**20)
    expert.compute = _zeros
    # A small window, or the transport would hold 64 MiB before anything waits here.
    windows = {"grpc.http2.lookahead_bytes", "grpc.http2.bdp_probe"}
    options = [each for each in client_options() if each[0] not in windows] + [("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(expert.endpoint, options) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        deaf = stub.Collect(iter([expert_pb2.CollectRequest(aggregator="deaf")]), timeout=60)
        next(deaf)
        receipts = stub.Dispatch(_dispatches(40, rows), timeout=60)
        next(receipts)
        failed = next(r.receipt for r in receipts if r.receipt.status != expert_pb2.PART_STATUS_PUSHED)
        deaf.cancel()
    assert failed.status == expert_pb2.PART_STATUS_FAILED
    assert f"aggregator 'deaf' does not read: {bound} bytes wait for it" in failed.message


def test_a_router_gets_every_receipt_before_a_stream_that_it_half_closed_ends(stage: Stage) -> None:
    expert = stage.expert(0)
    with grpc.insecure_channel(expert.endpoint, client_options()) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        responses = list(stub.Dispatch(_dispatches(5, 4), timeout=20))
    assert [response.receipt.call_id for response in responses[1:]] == [0, 1, 2, 3, 4]


def test_work_of_a_peer_that_is_gone_does_not_break_the_others(stage: Stage) -> None:
    attempts = three_groups(stage)
    attempts.run(toy_call(GROUPS))
    expert = stage.experts[0]
    expert.hold()
    with grpc.insecure_channel(expert.endpoint, client_options()) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        call = stub.Dispatch(_dispatches(3, 4), timeout=20)
        wait_until(lambda: expert.wire.stats().queued_rows == 12, "queueing")
        call.cancel()
        wait_until(lambda: expert.wire.stats().queued_rows == 0, "dropping")
    expert.release()
    after = toy_call(GROUPS)
    assert_adds_up(attempts.run(after), after)


def test_parts_that_waited_for_an_aggregator_that_left_are_reported(stage: Stage) -> None:
    expert = stage.expert(0, settings=WireSettings(max_outbox_bytes=4 * 2**20), max_queued_rows=2**20)
    expert.compute = _zeros
    windows = {"grpc.http2.lookahead_bytes", "grpc.http2.bdp_probe"}
    options = [each for each in client_options() if each[0] not in windows] + [("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(expert.endpoint, options) as channel:
        stub = expert_pb2_grpc.ExpertServiceStub(channel)
        deaf = stub.Collect(iter([expert_pb2.CollectRequest(aggregator="deaf")]), timeout=60)
        next(deaf)
        receipts = stub.Dispatch(_dispatches(40, 16384), timeout=60)
        next(receipts)
        statuses = [next(r.receipt.status for r in receipts if r.receipt.status == expert_pb2.PART_STATUS_FAILED)]
        deaf.cancel()
        statuses += [response.receipt.status for response in receipts]
    assert expert_pb2.PART_STATUS_NO_COLLECTOR in statuses
