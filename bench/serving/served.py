"""The loop of an engine and what it answers, whatever computes its steps; without PyTorch."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tests.serving.scheduler import Scheduler, StepPlan


@dataclass
class ServedEngine:
    """The people of a situation are in the process; their requests are real."""

    scheduler: Scheduler
    take: Callable[[StepPlan], None]
    """Computes a step, and returns when that is done."""

    page: str = ""
    told: str = ""
    """The page that was given last to who asked for ``/metrics``, as the daemon."""

    def run(self) -> NoReturn:
        """Serve without end."""
        scheduler = self.scheduler
        scheduler.open(time.monotonic())
        while True:
            now = time.monotonic()
            step = scheduler.plan(now)
            if step is None:
                self.page = scheduler.page()
                time.sleep(min(0.05, max(0.001, scheduler.next_at - now)))
                continue
            self.take(step)
            until = time.perf_counter() + scheduler.setting.host
            while time.perf_counter() < until:
                sum(range(100))
            scheduler.done(step, time.monotonic())
            self.page = scheduler.page()

    def listen(self, port: int) -> None:
        """Answer ``/metrics``, and ``/told`` with what was last answered there."""
        self.page = self.scheduler.page()
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    served.told = served.page
                body = served.told.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
