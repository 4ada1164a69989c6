"""A small gRPC service of all four kinds, for tests of what every server does around its handlers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from moe.api.control.v1 import control_pb2
from moe.api.tensor.v1 import tensor_pb2
from moe.runtime.server import Service

NAME = "moe.test.v1.Echo"

Message = tensor_pb2.Tensor


def message(data: bytes = b"x") -> Message:
    return Message(data=data)


@dataclass
class Echo:
    """Gives back what it gets. before_answer: runs with each message and may raise.

    hold: set by the test to let `waiting` answer; held: set when it waits; ended: set when a handler's `finally` ran.
    """

    before_answer: Callable[[Message], None] = lambda _: None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def unary(self, request: Message, context: object) -> Message:
        self.before_answer(request)
        return request

    async def waiting(self, request: Message, context: object) -> Message:
        """Answers when `hold` is set."""
        self.held.set()
        try:
            await self.hold.wait()
        finally:
            self.ended.set()
        return request

    async def streaming(self, request: Message, context: object) -> AsyncIterator[Message]:
        """Three answers."""
        for _ in range(3):
            self.before_answer(request)
            yield request

    async def gathering(self, requests: AsyncIterator[Message], context: object) -> Message:
        """All requests' data joined."""
        received = []
        async for request in requests:
            self.before_answer(request)
            received.append(request.data)
        return message(b"".join(received))

    async def talking(self, requests: AsyncIterator[Message], context: object) -> AsyncIterator[Message]:
        """One answer per request; never ends by itself."""
        try:
            async for request in requests:
                self.before_answer(request)
                yield request
        finally:
            self.ended.set()

    async def writing(self, request: Message, context: "grpc.aio.ServicerContext[Message, Message]") -> None:
        """Writes its answer itself instead of yielding it."""
        await context.write(request)
        self.before_answer(request)

    def register(self, server: grpc.aio.Server) -> None:
        codecs = {"request_deserializer": Message.FromString, "response_serializer": Message.SerializeToString}
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary, **codecs),
            "Waiting": grpc.unary_unary_rpc_method_handler(self.waiting, **codecs),
            "Streaming": grpc.unary_stream_rpc_method_handler(self.streaming, **codecs),
            "Writing": grpc.unary_stream_rpc_method_handler(self.writing, **codecs),
            "Gathering": grpc.stream_unary_rpc_method_handler(self.gathering, **codecs),
            "Talking": grpc.stream_stream_rpc_method_handler(self.talking, **codecs),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    def service(self, **changes: object) -> Service:
        """The service of a process called echo-0."""
        facts = {
            "name": "echo-0",
            "services": (NAME,),
            "register": self.register,
            "describe": lambda: control_pb2.DescribeResponse(name="echo-0", role=control_pb2.ROLE_EXPERT),
            "stats": lambda: control_pb2.StatsResponse(name="echo-0", role=control_pb2.ROLE_EXPERT),
        }
        return Service(**{**facts, **changes})


class EchoClient:
    """Calls of the service, by kind."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        codecs = {"request_serializer": Message.SerializeToString, "response_deserializer": Message.FromString}
        self.unary = channel.unary_unary(f"/{NAME}/Unary", **codecs)
        self.waiting = channel.unary_unary(f"/{NAME}/Waiting", **codecs)
        self.streaming = channel.unary_stream(f"/{NAME}/Streaming", **codecs)
        self.writing = channel.unary_stream(f"/{NAME}/Writing", **codecs)
        self.gathering = channel.stream_unary(f"/{NAME}/Gathering", **codecs)
        self.talking = channel.stream_stream(f"/{NAME}/Talking", **codecs)
