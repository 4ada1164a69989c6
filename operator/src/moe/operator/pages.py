"""Health and metrics of the operator over HTTP: /healthz while the process turns, /readyz once it can act or wait for
its turn, /metrics for Prometheus."""

from collections.abc import Callable

from aiohttp import web
from moe.operator.metrics import REGISTRY
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

_CLOSE_S = 0.5
"""For answers that are being written at the end; a kubelet's idle connections must not keep the process."""


async def serve_pages(port: int, ready: Callable[[], bool]) -> web.AppRunner:
    """Serves until `cleanup` of what is returned. Raises OSError when the port is taken."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(status=503, text="not yet\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=_CLOSE_S)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
