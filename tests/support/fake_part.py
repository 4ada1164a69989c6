"""A stand-in for a part: serves gRPC health and misbehaves as told. The supervisor's tests fork it like a real one.

--listen TARGET; --exit CODE ends at once; --exit-while FILE with code 1 as long as the file is there; --deaf never
gets ready; --stubborn ignores SIGTERM; --trace FILE gets a line `start NAME` and `term NAME`.
"""

import argparse
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="")
    parser.add_argument("--listen")
    parser.add_argument("--exit", type=int)
    parser.add_argument("--exit-while", type=Path)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--trace", type=Path)
    options = parser.parse_args(argv)
    print(f"part {options.name} speaks", flush=True)
    trace(options, "start")
    if options.exit is not None:
        return options.exit
    if options.exit_while and options.exit_while.exists():
        print("the file is still there", flush=True)
        return 1
    return serve(options)


def serve(options):
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if options.stubborn else ended.set())
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    status = health_pb2.HealthCheckResponse.NOT_SERVING if options.deaf else health_pb2.HealthCheckResponse.SERVING
    servicer.set("", status)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(options.listen)
    server.start()
    while not ended.wait(0.05):
        continue
    trace(options, "term")
    server.stop(None).wait()
    Path(options.listen.removeprefix("unix:")).unlink(missing_ok=True)
    return 0


def trace(options, word):
    if options.trace:
        with options.trace.open("a") as file:
            file.write(f"{word} {options.name}\n")
