"""The requests of the engines that serve from this node's GPUs, as the engines count them.

The engines belong to tenants, who may listen and answer as they like. So only processes on a GPU
and their relatives are asked, each of them only where the kernel says that it listens, with a GET
that has a deadline; of the answer, the known series are kept and each figure must be possible. Each
server has its own pace, and what it said is dropped when it no longer answers.

A server may have several GPUs. Its figures are those of the first of them, so that they count once;
``gpunode_serving_engine_info`` says which that is.
"""

from __future__ import annotations

import errno
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.gpu import GPU
from gpunode.holders.asked import AskedServers
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder, Pauses, stat_of
from gpunode.metric import Metric, Sample
from gpunode.node import http
from gpunode.node.kernel import ProcessStat
from gpunode.node.node import NoDescriptors, ScrapedPage
from gpunode.serving import engines, relatives, totals
from gpunode.serving.engines import SERIES, Engine, EngineFigure
from gpunode.serving.page import EnginePage, ModelFigures, parse
from gpunode.serving.totals import Totals
from gpunode.source import MORE_SOCKETS, Reading, bounded, in_turns, limit
from gpunode.unread import Unknown, Unread

SERVER = (*GPU, "engine", "model")
"""Labels of a server's figures: its first GPU, and what serves which model."""

INFO = Metric(
    "gpunode_serving_engine_info",
    "gauge",
    "Always 1; the engine on the GPU, the UUID of its `first` GPU, whose series have the figures "
    "of all, and its `role`: `prefill` or `decode` where these run apart.",
    (*GPU, "engine", "model", "first", "role"),
)
REQUESTS = Metric(
    "gpunode_serving_requests_in_flight",
    "gauge",
    "Requests that the engine computes (`running`), that wait for their turn (`waiting`), or "
    "whose KV cache is on its way between instances (`transferring`).",
    (*SERVER, "phase"),
)
KV_CACHE = Metric(
    "gpunode_serving_kv_cache_used_ratio",
    "gauge",
    "Share of the engine's KV cache in use; of several replicas in one server, the fullest.",
    SERVER,
)
TOKENS = Metric(
    "gpunode_serving_tokens_total",
    "counter",
    "Tokens since the server was first seen: of prompts (`prompt`), `generated`, looked up in "
    "the prefix cache (`asked`) and found there (`cached`).",
    (*SERVER, "kind"),
)
REQUESTS_ENDED = Metric(
    "gpunode_serving_requests_total",
    "counter",
    "Requests that ended since the server was first seen: well (`finished`), or with an error or "
    "given up (`failed`).",
    (*SERVER, "result"),
)
PREEMPTIONS = Metric(
    "gpunode_serving_preemptions_total",
    "counter",
    "Requests that lost their place in the KV cache and are computed again.",
    SERVER,
)
STEPS = Metric("gpunode_serving_steps_total", "counter", "Forward passes of the model.", SERVER)
ITEMS = Metric(
    "gpunode_serving_step_items_total",
    "counter",
    "Tokens in the forward passes, or inputs of a model without tokens; divided by the passes, "
    "that is the batch.",
    SERVER,
)
PARTS = Metric(
    "gpunode_serving_request_part_seconds_total",
    "counter",
    "Time of requests by part: `queue`, `prefill`, `decode`, `transfer` of the KV cache between "
    "instances, or `whole` for an engine without a histogram. Divide by the requests that ended "
    "for the mean.",
    (*SERVER, "part"),
)
FIRST_TOKEN_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OUTPUT_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0)
RESPONSE_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
EVENLY = "Buckets of engines with other bounds are split evenly."
FIRST_TOKEN = Metric(
    "gpunode_serving_first_token_seconds",
    "histogram",
    f"Time from the arrival of a request to its first token. {EVENLY}",
    SERVER,
    FIRST_TOKEN_BOUNDS,
)
OUTPUT_TOKEN = Metric(
    "gpunode_serving_output_token_seconds",
    "histogram",
    f"Time for each token after the first, or its mean over a request. {EVENLY}",
    SERVER,
    OUTPUT_TOKEN_BOUNDS,
)
RESPONSE = Metric(
    "gpunode_serving_response_seconds",
    "histogram",
    f"Time of whole requests, as the engine counts it. {EVENLY}",
    SERVER,
    RESPONSE_BOUNDS,
)
OBJECTIVE_MET = Metric(
    "gpunode_serving_objective_met_total",
    "counter",
    "First tokens and output tokens that came within serving.first-token-objective and "
    "serving.output-token-objective; the histogram's `_count` has all.",
    (*SERVER, "objective"),
)
TOKENLESS = Metric(
    "gpunode_serving_tokenless_seconds",
    "gauge",
    "Time for which the engine has had running requests and made no step, token or answer; "
    "absent for engines that count only whole requests.",
    SERVER,
)
STARTING = Metric(
    "gpunode_serving_starting_seconds",
    "gauge",
    "Time for which an engine has loaded on the GPU without answering: it loads the model, "
    "compiles or captures graphs.",
    GPU,
)
API_CPUS = Metric(
    "gpunode_serving_api_cpus_ratio",
    "gauge",
    "CPUs that the busiest of the engine's processes that take requests and make tokens used "
    "since the last read; absent where a process on a GPU does so itself (/proc/PID/stat).",
    GPU,
)
UNANSWERED = Metric(
    "gpunode_serving_unanswered",
    "gauge",
    "Processes on GPUs that may serve and whose figures were not read: not allowed "
    "(`no_permission`), too many sockets (`too_many_sockets`), an engine that is not known "
    "(`unknown`), no page of metrics (`no_metrics`), a page that cannot be parsed "
    "(`unparsable`), no answer in time (`silent`), anything else (`garbled`).",
    ("reason",),
)

UNKNOWN = Unknown(
    "engine",
    "a server on the GPU has a page of metrics of no known engine; its requests are not read",
)
PAGELESS = Unknown(
    "engine_page",
    "an engine on the GPU has no page of metrics that can be had and parsed; docs/serving.md says "
    "how to turn it on",
)
PARTIAL = Unknown(
    "engine_sum",
    "an engine has other parts of a figure than those that gpunode adds up; the figure is absent",
)
IMPLAUSIBLE = Unknown(
    "figure",
    "an engine has an impossible figure, as one below zero, or a line that cannot be read",
)

MORE_SERVERS = limit("servers")

COUNTERS: tuple[tuple[EngineFigure, Metric, tuple[str, ...]], ...] = (
    (engines.PROMPT, TOKENS, ("prompt",)),
    (engines.GENERATED, TOKENS, ("generated",)),
    (engines.ASKED, TOKENS, ("asked",)),
    (engines.CACHED, TOKENS, ("cached",)),
    (engines.FINISHED, REQUESTS_ENDED, ("finished",)),
    (engines.FAILED, REQUESTS_ENDED, ("failed",)),
    (engines.PREEMPTED, PREEMPTIONS, ()),
    (engines.STEPS, STEPS, ()),
    (engines.ITEMS, ITEMS, ()),
    (engines.QUEUE, PARTS, ("queue",)),
    (engines.PREFILL, PARTS, ("prefill",)),
    (engines.DECODE, PARTS, ("decode",)),
    (engines.TRANSFER, PARTS, ("transfer",)),
    (engines.WHOLE, PARTS, ("whole",)),
)
HISTOGRAMS = (
    (engines.FIRST_TOKEN, FIRST_TOKEN),
    (engines.OUTPUT_TOKEN, OUTPUT_TOKEN),
    (engines.RESPONSE, RESPONSE),
)

SERVERS = 64
"""The most servers of a node to ask; a node has one for each GPU, or for each part of one."""

AT_ONCE, MOST_AT_ONCE = 2, 6
"""The most servers of one owner, and of all, to ask at the same time: each may send
``tcp.LARGEST_ANSWER`` bytes."""

GENTLY = 50
"""Leave a server alone at least this many times as long as its last answer took."""

MAX_RETRY_SECONDS = 300.0
"""Seconds of the longest such pause, and until a port is asked again that has no metrics."""

RETRY_SECONDS = 15.0
"""Seconds until a server that no longer answers is asked again, at first, doubling: one that was
held up for a moment should be seen again soon."""

RATE_OVER = 60.0
"""Seconds over which a rate is told to people: some engines count an answer when it ends."""

HUNT_FIRST, HUNT_LAST = 5.0, 60.0
"""Seconds between looks for the engine of a process, at first and in the end, doubling."""

HUNT = 10.0
"""Seconds of a look for an engine after which no other port is asked."""

OVERDUE = 3
"""Pauses after which a server that had no turn counts as silent."""

LOADING = 503
"""The status of an engine that is not ready: llama.cpp's, while it loads the model."""

OTHER_PATH_REASONS = ("unknown", "no_metrics", "unparsable")
"""Where a page is not, that may be at another path."""

LASTING_REASONS = (*OTHER_PATH_REASONS, "garbled")
"""What does not change soon."""

MOVED = (301, 302, 307, 308)
"""Statuses for which the same path is asked with a slash: where Starlette mounts an application, it
redirects to that. No other place is asked."""

REASONS = (
    *("no_permission", "too_many_sockets", "unknown", "unparsable", "no_metrics", "silent"),
    "garbled",
)
"""Why nothing is read of a process, the most telling first."""


Key = tuple[int, float | None]
"""A process: its PID, and when it started."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that answers, and where; its start tells it from a later one with its PID."""

    process: Holder = field(compare=False)
    pid: int
    start: float | None
    address: str
    path: str


@dataclass(slots=True)
class ServerReading:
    """A reading of a server: which process answers for which, with what page."""

    pages: dict[Target, EnginePage] = field(default_factory=dict)
    answers_for: dict[Holder, Target] = field(default_factory=dict)
    reasons: dict[Holder, str] = field(default_factory=dict)
    silent: set[Target] = field(default_factory=set)
    pageless: set[Holder] = field(default_factory=set)
    """Those that answered, and not with a page that can be read, though they should have one."""

    starting: set[Holder] = field(default_factory=set)
    """Processes for which nobody answers, though it could be seen who listens."""

    cpus: dict[Target, float] = field(default_factory=dict)
    """CPUs that the busiest of the processes uses that take requests."""

    answering: float = 0.0
    """Seconds that engines took to answer."""


@dataclass(slots=True)
class Server:
    """The processes on GPUs that have an ancestor in common, and what was found of them."""

    holders: dict[Holder, list[Identity]]
    due: float = -math.inf
    asked: float = -math.inf
    silence: float = 0.0
    """How long it was left alone because it no longer answered."""

    good_until: float = math.inf
    targets: dict[Holder, Target] = field(default_factory=dict)
    hunts: dict[Holder, Pauses] = field(default_factory=dict)
    deaf: dict[Target, tuple[float, str]] = field(default_factory=dict)
    """Until when not to ask what has no metrics, and why."""

    used: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """Seconds of CPU of each process that takes requests, and when (monotonic) that was read."""

    found: ServerReading = field(default_factory=ServerReading)
    taken: float = -math.inf
    """When that was found."""


@dataclass(slots=True)
class StalledRequests:
    """Since when running requests of a server have had no output."""

    counted: tuple[float, ...]
    since: float
    running: float


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load of a server for one model; an unknown figure is None."""

    gpus: tuple[tuple[str, str], ...]
    """Index and UUID of each, the first first."""

    engine: str
    model: str
    running: float | None
    waiting: float | None
    tokens_per_second: float | None
    """Generated, over the last ``RATE_OVER`` seconds."""


@dataclass(frozen=True, slots=True)
class ServerLoads:
    """The loads of the servers that answered last."""

    servers: tuple[ServerLoad, ...]


Labels = tuple[str, str, str, str]


class ServingEngines:
    """Asks the engines of the processes on this node's GPUs for their figures."""

    name = "serving_engines"
    needs = (
        "an inference engine on a GPU that serves its metrics (docs/serving.md), without "
        "serving.ask=false; SYS_PTRACE to see where other users' processes listen; SYS_ADMIN and "
        "DAC_READ_SEARCH if it is in a pod"
    )
    metrics = (
        INFO,
        REQUESTS,
        KV_CACHE,
        TOKENS,
        REQUESTS_ENDED,
        PREEMPTIONS,
        STEPS,
        ITEMS,
        PARTS,
        FIRST_TOKEN,
        OUTPUT_TOKEN,
        RESPONSE,
        OBJECTIVE_MET,
        TOKENLESS,
        STARTING,
        API_CPUS,
        UNANSWERED,
    )
    unknowns = (UNKNOWN, PAGELESS, PARTIAL, IMPLAUSIBLE, MORE_SERVERS, MORE_SOCKETS)

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.node = census.node
        self.every = settings.serving.interval
        self.asks = settings.serving.ask
        self.objectives = {
            FIRST_TOKEN: ("first_token", settings.serving.first_token_objective),
            OUTPUT_TOKEN: ("output_token", settings.serving.output_token_objective),
        }
        self._servers: dict[Key, Server] = {}
        self._asked: AskedServers[Key, ServerReading | NoDescriptors] = AskedServers(
            self.node.clock
        )
        self._known: dict[Key, Holder] = {}
        self._known_before: dict[Key, Holder] = {}
        self._lock = Lock()  # for these two
        self._totals = Totals()
        self._still: dict[tuple[Target, Labels], StalledRequests] = {}
        self._seen: dict[Holder, float] = {}
        self._generated: dict[Labels, deque[tuple[float, float]]] = {}

    def read(self) -> Reading:
        """What the engines say now. Raises ``OSError`` where there is no thread to ask one."""
        if not self.asks:
            return Reading(())
        now = self.node.clock.monotonic()
        left_out = self._list(now)
        for key, found in self._ask(now):
            if isinstance(found, NoDescriptors):
                raise found.with_traceback(None)  # it is due as before
            self._take(key, found, now)
        for key in self._asked.now & self._servers.keys():
            if now > self._servers[key].good_until:
                self._silent(self._servers[key])
        self._totals.forget(now)
        return self._reading(now, left_out)

    def _list(self, now: float) -> tuple[Unread, ...]:
        """List the servers of the processes that are on GPUs now."""
        holders: dict[Holder, list[Identity]] = {}
        for gpu, look in self.census.everywhere():
            for holder in look.computing:
                if holder.start is not None:
                    holders.setdefault(holder, []).append(gpu.identity)
        with self._lock:
            self._known_before = self._known
            self._known = {(holder.pid, holder.start): holder for holder in holders}
        self._seen = {holder: self._seen.get(holder, now) for holder in holders}
        servers: dict[Key, Server] = {}
        for holder, gpus in holders.items():
            if not relatives.may_serve(holder):
                continue
            top = relatives.ancestors(holder, self._process)[-1]
            key = top.pid, top.start
            if key not in servers:
                servers[key] = self._servers.get(key) or Server({})
                servers[key].holders = {}
            servers[key].holders[holder] = gpus
        kept, left_out = bounded(
            servers, MORE_SERVERS, SERVERS, whose=lambda key: _budget_key(servers[key])
        )
        self._servers = {key: servers[key] for key in kept}
        return left_out

    def _process(self, pid: int, stat: ProcessStat) -> Holder:
        """A process, the same object as long as it is asked for at each read."""
        key = pid, stat.start
        with self._lock:
            known = self._known_before.get(key)
            return self._known.setdefault(key, known or Holder(self.node, pid, stat))

    def _ask(self, now: float) -> Iterator[tuple[Key, ServerReading | NoDescriptors]]:
        """What is found of the servers that are due, as it comes, and of those asked before."""
        servers, asked = self._servers, self._asked.now
        due = [key for key in servers if key not in asked and now >= servers[key].due]
        due.sort(key=lambda key: servers[key].asked)
        waiting = [key for _, key in in_turns((_budget_key(servers[key]), key) for key in due)]

        def following() -> Key | None:
            key = self._next(waiting)
            if key is not None:
                waiting.remove(key)
                servers[key].asked = now
            return key

        def look(key: Key, say: Callable[[ServerReading | NoDescriptors], None]) -> None:
            self._read_server(servers[key], now, say)

        return self._asked.answers(following, look)

    def _next(self, waiting: list[Key]) -> Key | None:
        """The next to ask: those of one owner that do not answer keep nobody else's waiting."""
        if len(self._asked.now) >= MOST_AT_ONCE:
            return None
        asked = Counter(
            _budget_key(self._servers[key])[0] for key in self._asked.now & self._servers.keys()
        )
        mine = (key for key in waiting if asked[_budget_key(self._servers[key])[0]] < AT_ONCE)
        return next(mine, None)

    def _read_server(
        self, server: Server, now: float, say: Callable[[ServerReading | NoDescriptors], None]
    ) -> None:
        """Look at a server in a thread of its own, and hand over what is found."""
        found = ServerReading()
        answer: ServerReading | NoDescriptors = found
        try:
            self._find(server, found, now)
        except NoDescriptors as error:
            answer = error
        finally:
            say(answer)

    def _find(self, server: Server, found: ServerReading, now: float) -> None:
        """Ask who answered before, and look for who answers for the others."""
        asked: dict[Target, str] = {}
        for holder in list(server.holders):
            target = server.targets.get(holder)
            if target is not None:
                why = self._try(target, found, asked, server, now)
                if not why:
                    found.answers_for[holder] = target
                    continue
                found.reasons[holder] = why
                if why == "silent":
                    found.silent.add(target)
                    continue
            pauses = server.hunts.setdefault(holder, Pauses(HUNT_FIRST, HUNT_LAST))
            if pauses.over(now):
                pauses.looked(now)
                self._hunt(holder, server, found, asked, now)
            elif holder in server.found.starting:
                found.starting.add(holder)
            else:
                found.reasons[holder] = server.found.reasons.get(holder, "garbled")
                found.pageless |= {holder} & server.found.pageless
        self._join_ranks(found)
        self._watch(server, found)

    def _join_ranks(self, found: ServerReading) -> None:
        """Let the one of a group of ranks that answers speak for those that do not.

        MPI and torchrun start the ranks of a server beside each other. Where several servers answer
        that one program has started, it is not known whose rank one is, but not that it starts.
        """
        answering = {*found.answers_for.values()}
        ranks = [holder for holder in found.starting if answering and holder.peers()]
        for holder in ranks:
            found.starting.discard(holder)
            if len(answering) == 1:
                found.reasons.pop(holder, None)
                (found.answers_for[holder],) = answering

    def _watch(self, server: Server, found: ServerReading) -> None:
        """See how busy those are that take requests, also one that is too busy to answer.

        A process that started one on a GPU may spin while it waits for that, as vLLM's engine core.
        """
        lines = (relatives.ancestors(holder, self._process) for holder in server.holders)
        others = {process.pid for line in lines for process in line}
        before, server.used = server.used, {}
        for target in {*found.answers_for.values(), *found.silent}:
            if any(target.pid == holder.pid for holder in server.holders):
                continue
            below = relatives.children(target.process, others, self._process)
            for process in (target.process, *below):
                stat = stat_of(self.node, process.pid)
                if stat is None or stat.start != process.start:
                    continue
                now, key = self.node.clock.monotonic(), (process.pid, process.start)
                server.used[key] = stat.cpu, now
                cpu, at = before.get(key, (0.0, now))
                if at < now:
                    used = (stat.cpu - cpu) / (now - at)
                    found.cpus[target] = max(used, found.cpus.get(target, 0.0))

    def _hunt(
        self,
        holder: Holder,
        server: Server,
        found: ServerReading,
        asked: dict[Target, str],
        now: float,
    ) -> None:
        """Look for who answers for a process: itself and those above it, then their children."""
        begin = self.node.clock.monotonic()
        line = relatives.ancestors(holder, self._process)
        on_gpus = {one.pid for one in server.holders}
        why: set[str] = set()
        for process in (*line, *relatives.siblings(line, on_gpus, self._process)):
            try:
                places = relatives.addresses(process, on_gpu=process.pid in on_gpus)
            except PermissionError:
                why.add("no_permission")
                continue
            except OSError as error:
                # Else it has ended, or is not on this tape.
                why.add("too_many_sockets" if error.errno == errno.EFBIG else "gone")
                continue
            for address in places:
                if self.node.clock.monotonic() - begin > HUNT:
                    break
                for path in relatives.paths(process):
                    target = Target(process, process.pid, process.start, address, path)
                    said = self._try(target, found, asked, server, now)
                    if not said:
                        found.answers_for[holder] = target
                        found.reasons.pop(holder, None)
                        return
                    # What else a launcher started says nothing of an engine that is loading.
                    if process in line or relatives.engine_of(process):
                        why.add(said)
                    if said not in OTHER_PATH_REASONS:
                        break
        if "unparsable" in why or (relatives.engine_of(holder) and why & {"no_metrics", "garbled"}):
            found.pageless.add(holder)
        told = next((reason for reason in REASONS if reason in why), "")
        if told:
            found.reasons[holder] = told
        if not why - {"loading", "silent"}:
            found.starting.add(holder)

    def _try(
        self,
        target: Target,
        found: ServerReading,
        asked: dict[Target, str],
        server: Server,
        now: float,
    ) -> str:
        """Ask at an address, once in a look. Empty if an engine answers, else why it does not."""
        if target not in asked:
            until, why = server.deaf.get(target, (now, ""))
            if until <= now:
                why = self._get(target, found)
                if why in LASTING_REASONS:
                    server.deaf[target] = now + MAX_RETRY_SECONDS, why
                elif why == "silent" and target not in server.targets.values():
                    # Where ranks meet, say, which waits for no HTTP.
                    server.deaf[target] = now + HUNT_LAST, why
            asked[target] = why
        return asked[target]

    def _get(self, target: Target, found: ServerReading) -> str:
        """Ask at an address. Empty if an engine answers, else why it does not."""
        begin = self.node.clock.monotonic()
        try:
            page = self._scraped(target, target.path)
            if page.status in MOVED:
                page = self._scraped(target, f"{target.path}/")
        except TimeoutError:
            return "silent"
        except PermissionError:
            return "no_permission"
        except (ConnectionRefusedError, FileNotFoundError, ProcessLookupError):
            return "loading"  # it does not listen any longer, or not yet
        except OSError as error:
            return "unparsable" if error.errno == errno.EBADMSG else "garbled"
        told = parse(page.kept)
        if told is not None:
            found.pages[target] = told
            found.answering += self.node.clock.monotonic() - begin
            return ""
        if page.status in (LOADING, http.EMPTY):
            return "loading"
        return "unknown" if page.exposes else "no_metrics"

    def _scraped(self, target: Target, path: str) -> ScrapedPage:
        process = target.process
        return process.ask(partial(self.node.scrape, process.pid, target.address, path, SERIES))

    def _take(self, key: Key, found: ServerReading, now: float) -> None:
        """Take what was found of a server."""
        server = self._servers.get(key)
        if server is None:
            return  # it has ended
        pause = min(MAX_RETRY_SECONDS, GENTLY * found.answering)
        silent = bool(found.silent) and not found.pages
        server.silence = (
            min(MAX_RETRY_SECONDS, 2 * server.silence or RETRY_SECONDS) if silent else 0.0
        )
        if silent:
            pause = server.silence
        # A pause no longer than the interval is none: reads do not begin to the millisecond.
        server.due = now + pause if pause > self.every else now
        server.good_until = now + OVERDUE * max(pause, self.every)
        for holder, target in found.answers_for.items():
            server.targets[holder] = target
            server.hunts.pop(holder, None)
        for holder, why in found.reasons.items():
            if why != "silent":
                server.targets.pop(holder, None)
        server.deaf = {target: one for target, one in server.deaf.items() if one[0] > now}
        server.found, server.taken = found, now

    def _silent(self, server: Server) -> None:
        """Drop what a server said that takes too long."""
        silent = dict.fromkeys(server.holders, "silent")
        server.found = ServerReading(reasons=silent, silent=set(server.targets.values()))

    def _reading(self, now: float, left_out: Sequence[Unread]) -> Reading:
        samples: list[Sample] = []
        unread: list[Unread] = [*left_out]
        reasons = Counter(dict.fromkeys(REASONS, 0))
        still: dict[tuple[Target, Labels], StalledRequests] = {}
        now_serving: list[ServerLoad] = []
        for server in self._servers.values():
            found = server.found
            reasons.update(why for h, why in found.reasons.items() if h in server.holders)
            unread += [
                PAGELESS.seen(
                    f"{relatives.engine_of(holder) or 'a server'}: {found.reasons[holder]}"
                )
                for holder in found.pageless & server.holders.keys() & found.reasons.keys()
            ]
            for target, page in found.pages.items():
                gpus = self._gpus(server, target)
                if gpus:
                    unread += [IMPLAUSIBLE.seen(page.engine.name)] * page.strange
                    unread += [
                        PARTIAL.seen(f"{page.engine.name}: {figure.name}")
                        for figure in page.partial
                    ]
                    samples += self._of(target, page, gpus, server.taken, still)
                    now_serving += self._loads(page, gpus)
            samples += self._silent_samples(found, now, still)
            for target, used in found.cpus.items():
                for gpu in self._gpus(server, target):
                    samples += API_CPUS.at(used, *gpu.labels)
            for holder in found.starting & server.holders.keys():
                if relatives.engine_of(holder):
                    for gpu in server.holders[holder]:
                        samples += STARTING.at(now - self._seen.get(holder, now), *gpu.labels)
        self._still = still
        unread += [UNKNOWN.seen("a page of metrics")] * reasons["unknown"]
        unread += [MORE_SOCKETS.seen("in the network of a process")] * reasons["too_many_sockets"]
        if any(reasons.values()) or samples:
            for reason in REASONS:
                samples += UNANSWERED.at(float(reasons[reason]), reason)
        told = {(*one.gpus[0], one.engine, one.model) for one in now_serving}
        self._generated = {at: counted for at, counted in self._generated.items() if at in told}
        return Reading(
            tuple(_merge_shared(samples)), ServerLoads(tuple(now_serving)), tuple(unread)
        )

    def _loads(self, page: EnginePage, gpus: list[Identity]) -> Iterator[ServerLoad]:
        """What a server has to do, by its models."""
        places = tuple(gpu.labels for gpu in gpus)
        for model, told in page.models.items():
            counted = self._generated.get((*gpus[0].labels, page.engine.name, model), deque())
            rate = None
            if len(counted) > 1:
                (since, before), (until, after) = counted[0], counted[-1]
                rate = (after - before) / (until - since)
            yield ServerLoad(
                places,
                page.engine.name,
                model,
                told.figures.get(engines.RUNNING),
                told.figures.get(engines.WAITING),
                rate,
            )

    def _gpus(self, server: Server, target: Target) -> list[Identity]:
        """The GPUs of the processes for which a target answers, the first of them first."""
        found = {
            gpu.uuid: gpu
            for holder, gpus in server.holders.items()
            if server.targets.get(holder) == target
            for gpu in gpus
        }
        return sorted(found.values(), key=lambda gpu: gpu.index)

    def _of(
        self,
        target: Target,
        page: EnginePage,
        gpus: list[Identity],
        now: float,
        still: dict[tuple[Target, Labels], StalledRequests],
    ) -> Iterator[Sample]:
        """What an engine says, as series of its first GPU."""
        for model, told in page.models.items():
            at = *gpus[0].labels, page.engine.name, model
            for gpu in gpus:
                yield from INFO.at(
                    1.0, *gpu.labels, page.engine.name, model, gpus[0].uuid, told.role
                )
            figures = told.figures
            yield from REQUESTS.at(figures.get(engines.RUNNING), *at, "running")
            yield from REQUESTS.at(figures.get(engines.WAITING), *at, "waiting")
            if told.role:
                transferring = figures.get(engines.TRANSFERRING)
                yield from REQUESTS.at(transferring, *at, "transferring")
            yield from KV_CACHE.at(_ratio(figures.get(engines.KV_CACHE)), *at)
            for figure, metric, labels in COUNTERS:
                if figure in figures:
                    total = self._totals.add(
                        (metric.name, at, labels), target, [figures[figure]], now
                    )
                    yield from metric.at(total[0], *at, *labels)
                    if figure is engines.GENERATED:
                        self._count_for_people(at, total[0], now)
            yield from self._histograms(target, told, at, now)
            still_for = self._stalled_for(target, page.engine, at, told, now, still)
            yield from TOKENLESS.at(still_for, *at)

    def _count_for_people(self, at: Labels, total: float, now: float) -> None:
        counted = self._generated.setdefault(at, deque())
        if not counted or now > counted[-1][0]:
            counted.append((now, total))
        while len(counted) > 2 and now - counted[1][0] >= RATE_OVER:
            counted.popleft()

    def _histograms(
        self, target: Target, told: ModelFigures, at: Labels, now: float
    ) -> Iterator[Sample]:
        for figure, metric in HISTOGRAMS:
            times = told.times.get(figure)
            if times is None or times.count is None or times.sum is None or not times.upto:
                continue
            raw = totals.bucket_counts(times, metric.buckets)
            sums = self._totals.add((metric.name, at), target, raw, now)
            yield Sample(metric, at, totals.distribution(sums, metric.buckets))
            if metric in self.objectives:
                name, seconds = self.objectives[metric]
                within = totals.count_up_to(times, seconds)
                met = self._totals.add((OBJECTIVE_MET.name, at, name), target, [within], now)
                yield from OBJECTIVE_MET.at(met[0], *at, name)

    def _stalled_for(
        self,
        target: Target,
        engine: Engine,
        at: Labels,
        told: ModelFigures,
        now: float,
        still: dict[tuple[Target, Labels], StalledRequests],
    ) -> float | None:
        """For how long requests have been running and nothing came of them; None if not known."""
        counted = totals.progress(
            {f: told.figures[f] for f in engine.goes_on if f in told.figures},
            {f: told.times[f] for f in engine.goes_on if f in told.times},
        )
        running = told.figures.get(engines.RUNNING)
        if running is None or not counted:
            return None
        before = self._still.get((target, at))
        stands = before is not None and before.running > 0 and before.counted == counted
        since = before.since if before is not None and stands and running > 0 else now
        still[target, at] = StalledRequests(counted, since, running)
        return now - since

    def _silent_samples(
        self, found: ServerReading, now: float, still: dict[tuple[Target, Labels], StalledRequests]
    ) -> Iterator[Sample]:
        """For how long silent servers with running requests have had no output."""
        for (target, at), before in self._still.items():
            if target in found.silent and before.running > 0:
                still[target, at] = before
                yield from TOKENLESS.at(now - before.since, *at)


def _budget_key(server: Server) -> tuple[str, str]:
    """Whose a server is, and a GPU of his, for ``bounded``."""
    holder, gpus = next(iter(server.holders.items()))
    return holder.budget(), gpus[0].uuid


def _ratio(value: float | None) -> float | None:
    return None if value is None or value > 1.0 else value


def _merge_shared(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Samples of which two servers of the same engine and model share a GPU, added up."""
    seen: dict[tuple[Metric, tuple[str, ...]], Sample] = {}
    for sample in samples:
        key = sample.metric, sample.labels
        before = seen.get(key)
        if before is None or not isinstance(sample.value, float):
            seen[key] = sample
        elif sample.metric is REQUESTS and isinstance(before.value, float):
            seen[key] = Sample(sample.metric, sample.labels, before.value + sample.value)
        elif isinstance(before.value, float) and sample.value > before.value:
            seen[key] = sample
    return iter(seen.values())
