"""Logs, metrics and traces."""

import json
import logging
import subprocess
import sys
import urllib.request

import pytest
from moe.api.control.v1 import control_pb2
from moe.runtime import logs, metrics, stats_metrics, traces
from moe.runtime.errors import StartupError
from moe.runtime.telemetry import TelemetrySettings, telemetry
from prometheus_client import CollectorRegistry, generate_latest
from support.echo_service import Echo
from support.ports import free_port
from support.trace_collector import SENDER, Collector


def record(message, *args, error=None):
    return logging.LogRecord(
        "moe.expert", logging.WARNING, "x.py", 1, message, args, (type(error), error, None) if error else None
    )


def test_a_text_line_names_level_process_and_logger():
    line = logs.TextFormatter("demo-003-0").format(record("%d rows", 7))
    assert line.split(" ", 1)[1] == "warning demo-003-0 moe.expert: 7 rows"


def test_a_json_line_has_the_same_facts_by_name():
    entry = json.loads(logs.JsonFormatter("demo-003-0").format(record("%d rows", 7)))
    assert {key: entry[key] for key in ("level", "process", "logger", "message")} == {
        "level": "warning",
        "process": "demo-003-0",
        "logger": "moe.expert",
        "message": "7 rows",
    }


@pytest.mark.parametrize("message", ["two\nlines", "\udc80", 'quote"'])
def test_a_hostile_message_stays_within_its_json_line(message):
    line = logs.JsonFormatter("p").format(record(message))
    assert "\n" not in line
    assert json.loads(line)["message"] == message


def test_a_trace_is_part_of_its_json_line():
    assert (
        "ValueError: why"
        in json.loads(logs.JsonFormatter("p").format(record("broke", error=ValueError("why"))))["trace"]
    )


def test_set_up_sends_logs_to_stderr_from_the_level_on():
    program = (
        "import logging; from moe.runtime import logs; logs.set_up('warning', 'json', name='p');"
        "logging.getLogger('moe').info('quiet'); logging.getLogger('moe').warning('heard')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == ""
    assert [json.loads(line)["message"] for line in run.stderr.splitlines()] == ["heard"]


def page_of(stats):
    registry = CollectorRegistry()
    registry.register(metrics.FromStats(stats_metrics.reader(lambda: stats)))
    return generate_latest(registry).decode().splitlines()


def test_an_experts_figures_are_on_its_page():
    expert = control_pb2.ExpertStats(rows=12, slots_by_expert={3: 7, 11: 5}, busy_s=0.5, queued_rows=2)
    expert.MergeFrom(control_pb2.ExpertStats(dispatches=6, queue_wait_s=1.5, rows_per_s=24, kernel="native"))
    page = page_of(control_pb2.StatsResponse(expert=expert))
    assert {
        "moe_expert_rows_total 12.0",
        'moe_expert_slots_total{expert="3"} 7.0',
        'moe_expert_slots_total{expert="11"} 5.0',
        "moe_expert_busy_seconds_total 0.5",
        "moe_expert_queued_rows 2.0",
        "moe_expert_dispatches_total 6.0",
        "moe_expert_queue_wait_seconds_total 1.5",
        "moe_expert_rows_per_second 24.0",
        'moe_expert_kernel_info{kernel="native"} 1.0',
    } <= set(page)


def test_a_router_with_an_aggregator_inside_shows_both():
    router = control_pb2.RouterStats(running=1, degradations={"renormalise": 4})
    page = page_of(control_pb2.StatsResponse(router=router, aggregator=control_pb2.AggregatorStats(combined=9)))
    assert {
        "moe_router_running_requests 1.0",
        'moe_router_degradations_total{degradation="renormalise"} 4.0',
        "moe_aggregator_combined_total 9.0",
    } <= set(page)


def test_a_part_that_is_not_there_has_no_metrics():
    assert page_of(control_pb2.StatsResponse()) == []


PARTS = {
    "expert": control_pb2.ExpertStats,
    "router": control_pb2.RouterStats,
    "aggregator": control_pb2.AggregatorStats,
}


@pytest.mark.parametrize("part", PARTS)
def test_every_figure_of_the_control_service_is_a_metric(part):
    figures = PARTS[part].DESCRIPTOR.fields
    response = control_pb2.StatsResponse()
    getattr(response, part).SetInParent()
    assert len(list(stats_metrics.readings(response))) == len(figures)


def test_metric_names_begin_with_the_part_and_stand_once():
    names = [value for name, value in vars(metrics).items() if name.isupper()]
    assert len(set(names)) == len(names)
    assert all(name.startswith(("moe_expert_", "moe_router_", "moe_aggregator_", "moe_discovery_")) for name in names)


def test_a_services_own_readings_are_on_the_page_too():
    settings = TelemetrySettings(metrics_port=free_port())
    service = Echo().service(readings=lambda: [metrics.Reading("moe_echoes", "Echoes.", "gauge", {"": 3})])
    address = f"http://127.0.0.1:{settings.metrics_port}/metrics"
    with telemetry(settings, service), urllib.request.urlopen(address, timeout=10) as page:
        assert "moe_echoes 3.0" in page.read().decode()


def test_the_page_is_served_while_the_block_runs():
    settings = TelemetrySettings(metrics_port=free_port())
    stats = control_pb2.StatsResponse(expert=control_pb2.ExpertStats(rows=5))
    address = f"http://127.0.0.1:{settings.metrics_port}/metrics"
    with telemetry(settings, Echo().service(stats=lambda: stats)), urllib.request.urlopen(address, timeout=10) as page:
        text = page.read().decode()
    assert "moe_expert_rows_total 5.0" in text
    assert "process_resident_memory_bytes" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_a_metrics_port_in_use_is_named():
    settings = TelemetrySettings(metrics_port=free_port())
    service = Echo().service()
    with (
        telemetry(settings, service),
        pytest.raises(StartupError, match=f"127.0.0.1:{settings.metrics_port}: Address already in use"),
        telemetry(settings, service),
    ):
        pass


def test_without_an_endpoint_spans_go_nowhere():
    traces.set_up("", name="p", instance="i")()
    with traces.tracer("moe.router").start_as_current_span("step") as span:
        assert not span.is_recording()


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(StartupError, match="--otlp-endpoint collector:4317: want http://host:port"):
        traces.set_up("collector:4317", name="p", instance="i")


def test_with_an_endpoint_spans_reach_the_collector_with_name_and_instance():
    collector = Collector()
    try:
        subprocess.run([sys.executable, "-c", SENDER, collector.endpoint], check=True, timeout=60)
    finally:
        collector.close()
    (spans,) = (resource for request in collector.requests for resource in request.resource_spans)
    facts = {fact.key: fact.value.string_value for fact in spans.resource.attributes}
    assert (facts["service.name"], facts["service.instance.id"]) == ("router-0", "0123")
    assert [span.name for scope in spans.scope_spans for span in scope.spans] == ["step"]
