"""What a site may want otherwise than the rules have it: a threshold in an expression, a pattern.

An expression names a setting (``f"{expression} > {NVLINK_ERRORS}"``), so that the expression, the
words about it and what a site changes have one figure. A threshold that only a tier of an alert
has is in that tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from alerts.model import Unit
from gpunode.driver.nvidia.xids import OF_HARDWARE, OF_NVLINK5, those_that
from gpunode.verdict.causes.cause import LOST
from gpunode.verdict.causes.data import REMOTE_SHARE, SHM_FULL
from gpunode.verdict.causes.serving import FULL

XID_REMEMBERED = 900.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that expressions name, and what it decides."""

    name: str
    value: str | float
    meaning: str
    unit: Unit | None = None
    """How a figure is written; None for a text."""

    def __str__(self) -> str:
        """The setting as expressions and annotations name it."""
        return f"${{{self.name}}}"

    @property
    def figure(self) -> float:
        """The value of a setting that is a figure. Raises ``TypeError`` for a text."""
        if isinstance(self.value, str):
            raise TypeError(f"{self.name} is a text")
        return float(self.value)


def _any(xids: tuple[int, ...]) -> str:
    return "|".join(str(xid) for xid in sorted(xids))


SCRAPE_JOBS = Setting(
    "scrape_jobs",
    ".*gpunode.*",
    "Pattern of the names of the scrape jobs that scrape gpunode.",
)
GRAFANA_URL = Setting(
    "grafana_url",
    "",
    "Address of Grafana, such as https://grafana.example.org, to which alerts lead.",
)
NODE_URL = Setting(
    "node_url",
    "",
    "Address of a node's daemon, in which INSTANCE stands for the label of the node, such as "
    "https://INSTANCE; alerts then lead to what it has kept of an incident.",
)
RUNBOOKS_URL = Setting(
    "runbooks_url",
    "https://github.com/gpunode/gpunode/blob/main/alerts/runbooks",
    "Address of the runbooks, to which their names are appended; the chart's is `rules.runbooks`.",
)

# Faults that many nodes have

FLEET_NODES = Setting(
    "fleet_nodes",
    5,
    "From this many nodes with the same fault on, one alert speaks for all of them.",
    "count",
)
FLEET_SHARE = Setting(
    "fleet_share",
    0.05,
    "Above this share of the nodes as well, if they are as many as `fleet_least`.",
    "percent",
)
FLEET_LEAST = Setting(
    "fleet_least",
    2,
    "Fewer nodes than this are no fault of the fleet, whatever their share.",
    "count",
)
FLEET_JOBS = Setting(
    "fleet_jobs",
    4,
    "From this many jobs of a cluster on that come to stand still together, one alert speaks for "
    "all of them, though no node shows a fault.",
    "count",
)
TOGETHER_WITHIN = Setting(
    "together_within",
    240,
    "Seconds within which jobs come to stand still together.",
    "seconds",
)
EXPLAINS_BEFORE = Setting(
    "explains_before",
    900,
    "Seconds for which a job may have stood still when a fault of many nodes or of a filesystem is "
    "seen, and still stand for it: some faults are seen ten minutes late.",
    "seconds",
)
INCIDENT_BEGINS = Setting(
    "incident_begins",
    600,
    "Seconds for which an incident of a GPU is recorded as new: a long one costs no more than a "
    "short one.",
    "seconds",
)
LEMON_BEYOND = Setting(
    "lemon_beyond",
    2,
    "A GPU that has broken jobs is a lemon above this multiple of what other GPUs have that have "
    "broken any.",
    "number",
)
THROTTLED = Setting(
    "throttled",
    0.1,
    "Above this share of the time with lowered clocks, now and six minutes before, a GPU has a "
    "fault that counts for FleetFault.",
    "percent",
)
THROTTLED_OFTEN = Setting(
    "throttled_often",
    0.05,
    "Above this share of an hour with lowered clocks, a GPU is throttled though it comes and goes.",
    "percent",
)
THROTTLED_AGAIN = Setting(
    "throttled_again",
    3,
    "In so many of the hour's twelve parts it must have been so: fewer may be one short event.",
    "count",
)
PORT_DOWN = Setting(
    "port_down",
    0.9,
    "A port that is up for less than this share of ten minutes has a fault that counts for "
    "FleetFault; the threshold of NetworkPortDown, too, as long as no other is set there.",
    "percent",
)

# Jobs that stand still

BUSY_SHARE = Setting(
    "busy_share",
    0.25,
    "Above this share of its time at work, a GPU runs something that can be harmed.",
    "percent",
)
PAUSED_AT_MOST = Setting(
    "paused_at_most",
    3600,
    "Seconds for which a pause that training reports excuses that nothing moves.",
    "seconds",
)
UNINTERRUPTIBLE_AT_MOST = Setting(
    "uninterruptible_at_most",
    180,
    "Seconds for which a process that waits for a disk or file server excuses that nothing "
    "moves; then its storage is either back or has an alert of its own.",
    "seconds",
)
BLOCKED_FROM = Setting(
    "blocked_from",
    10,
    "Seconds of waiting after which a GPU is blocked, not only between two steps.",
    "seconds",
)
BLOCKED_SHARE = Setting(
    "blocked_share",
    0.9,
    "Above this share of five minutes in a collective, a GPU that does not work is blocked, though "
    "tiny kernels break each wait.",
    "percent",
)
STALLED_FROM = Setting(
    "stalled_from",
    20,
    "Seconds of a stall after which the rules look for those for whom the others wait; the "
    "threshold of JobStalled, too, as long as no other is set there.",
    "seconds",
)
PAGED_FROM = Setting(
    "paged_from",
    120,
    "GPU seconds that a stall must have cost before JobStalled pages: two GPUs for a minute, eight "
    "at once.",
    "seconds",
)
PAGED_GPUS = Setting(
    "paged_gpus",
    2,
    "Jobs with fewer GPUs than this wake nobody because they stand still or are idle.",
    "count",
)
NOTEBOOK_RESTS = Setting(
    "notebook_rests",
    1800.0,
    "A notebook that has run nothing for as long is not missed when its node goes down.",
    "seconds",
)
TICKETED_GPUS = Setting(
    "ticketed_gpus",
    1,
    "Jobs with fewer GPUs than this make no ticket because they stand still.",
    "count",
)
FOUND_WAITING_FROM = Setting(
    "found_waiting_from",
    600,
    "Seconds of waiting after which a training job stands still though it was not seen to work: "
    "one that waited already when its nodes were first scraped, or that was started again. A start "
    "waits for less, or is ended.",
    "seconds",
)
"""PyTorch's watchdog waits for ten minutes:
https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group"""

STILL_FROM = Setting(
    "still_from",
    60,
    "Seconds without work after which a job stands still: it keeps the GPUs that it had, and is "
    "not held up by a straggler.",
    "seconds",
)
RANKS_LEAVE_WITHIN = Setting(
    "ranks_leave_within",
    120,
    "Seconds for which processes that leave the GPUs of a job excuse that nothing moves: it ends "
    "rank by rank, restarts, or goes on with fewer ranks.",
    "seconds",
)
COMES_BACK_WITHIN = Setting(
    "comes_back_within",
    300,
    "Seconds of standing still up to which a job that works again has come back by itself; after "
    "a longer time somebody may have restarted it.",
    "seconds",
)
"""PyTorch's watchdog waits for ten minutes:
https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group"""

COMES_BACK_AGAIN = Setting(
    "comes_back_again",
    2,
    "A job that has come back by itself is reported after this multiple of its longest pause.",
    "number",
)
SERVER_STALLED_FROM = Setting(
    "server_stalled_from",
    180,
    "Seconds without work after which GPUs of a server that spin stand still.",
    "seconds",
)
SERVER_TOKENLESS_FROM = Setting(
    "server_tokenless_from",
    30,
    "Seconds for which a server whose engine has running requests may give no token, and its GPUs "
    "do no work.",
    "seconds",
)
SERVER_RESTED = Setting(
    "server_rested",
    0.9,
    "Above this share of five minutes with nothing to run on any of its GPUs, a server rests.",
    "percent",
)
STARVED_FROM = Setting(
    "starved_from",
    LOST,
    "Above this share of its time without data, a GPU is starved, where another alert asks.",
    "percent",
)
STRAGGLER_FROM = Setting(
    "straggler_from",
    0.2,
    "A GPU that waits less for its peers than another of its job, by more than this share of the "
    "time, holds them back; the threshold of JobStraggler, too, as long as no other is set there.",
    "percent",
)
STRAGGLER_SLOWDOWN = Setting(
    "straggler_slowdown",
    1.1,
    "A job whose steps take less than this multiple of the best pace has no straggler, unless "
    "the GPU has a fault of its own.",
    "number",
)
SERVER_LAUNCHES = Setting(
    "server_launches",
    0.3,
    "Above this share of its time in gaps between small kernels, a service is bound by launches: "
    "each token is a step of many small kernels, so that half of it is common.",
    "percent",
)
OTHERS_COPY = Setting(
    "others_copy",
    0.3,
    "Above this share of its time in copies, a job that does not train is held back by them: to "
    "fetch what it works on is part of its work.",
    "percent",
)
RESTARTED_USEFUL = Setting(
    "restarted_useful",
    0.3,
    "A job that computes for this share of an hour does not crash in a loop.",
    "percent",
)
LOOPS_ABOVE = Setting(
    "loops_above",
    3,
    "Above this number of processes on one GPU in an hour, a job starts again and again; the "
    "threshold of the page of JobCrashLoops, too, as long as no other is set there.",
    "count",
)
LOOPS_GPUS = Setting(
    "loops_gpus",
    8,
    "A job with at least this many GPUs that starts again and again pages an hour sooner than a "
    "smaller one.",
    "count",
)
LOOPS_WORK = Setting(
    "loops_work",
    0.1,
    "A job that starts again and again after it has worked makes no progress while none of its "
    "GPUs computes for more than this share of five minutes.",
    "percent",
)
LOOPS_ANSWERED = Setting(
    "loops_answered",
    0.5,
    "A service that answers more than this share of its usual requests is there for its users, "
    "though its servers end again and again.",
    "percent",
)
ENDS_SOON = Setting(
    "ends_soon",
    0.08,
    "A process of a server that had a GPU for less than this share of an hour, as far as it was "
    "scraped, and has ended, has crashed: some five minutes.",
    "percent",
)
STARTS_FOR = Setting(
    "starts_for",
    900,
    "Seconds up to which no start of a job is slow, whatever its earlier ones took.",
    "seconds",
)

STARTS_LONGER = Setting(
    "starts_longer",
    3.0,
    "A start that takes less than this multiple of the median of a week is as usual; the threshold "
    "of JobSlowToStart, too, as long as no other is set there.",
    "number",
)

FIRST_STARTS = Setting(
    "first_starts",
    1200,
    "Seconds that the first start of a job commonly takes, as far as nothing is known of others, "
    "if it has `first_starts_gpus`; with fewer GPUs it is given longer, by as much as they cost "
    "less.",
    "seconds",
)
FIRST_STARTS_GPUS = Setting(
    "first_starts_gpus",
    8,
    "From this many GPUs on, the first start of a job is given no longer than `first_starts` says.",
    "count",
)
ENGINE_RESTS = Setting(
    "engine_rests",
    600,
    "Seconds without work from which on an engine that answers nobody does not load, compile or "
    "capture: each of these uses the GPU now and then.",
    "seconds",
)
ENGINE_STARTS = Setting(
    "engine_starts",
    900,
    "Seconds within which an inference engine commonly has loaded its model and answers.",
    "seconds",
)

# Versions

FEW_NODES = Setting(
    "few_nodes",
    0.5,
    "A version that at most this share of the nodes has makes them differ from the others.",
    "percent",
)
BEST_PACE = Setting(
    "best_pace",
    1.1,
    "A job that took at most this multiple of its best hour of the week was near its best pace.",
    "number",
)

# Requests to servers

SERVING_SLOWDOWN = Setting(
    "serving_slowdown",
    2,
    "Requests that take more than this multiple of what they took for a day are slow.",
    "number",
)

SERVING_TARGET = Setting(
    "serving_target",
    0.99,
    "Share of the first tokens, and of the others, that should come within the exporter's "
    "objectives: serving.first-token-objective and serving.output-token-objective.",
    "percent",
)
KV_CACHE_FULL = Setting(
    "kv_cache_full",
    FULL,
    "From this share in use, a KV cache has no room for another request.",
    "percent",
)
ASKED_SHARE = Setting(
    "asked_share",
    0.9,
    "Above this share of the last day with requests, as far as its cluster was seen, a service is "
    "always asked.",
    "percent",
)
FADED_BELOW = Setting(
    "faded_below",
    0.05,
    "A service that had less than this share of its usual requests for half an hour, and more at "
    "the same time yesterday, wakes nobody when the last of them ends.",
    "percent",
)
TAKEN_OVER_SHARE = Setting(
    "taken_over",
    0.5,
    "A service that ends wakes nobody if another of its namespace and user gained at least this "
    "share of its requests, and more than this share of its own, since an hour before.",
    "percent",
)

# Collectives that are slow

COLLECTIVES_FROM = Setting(
    "collectives_from",
    0.05,
    "Where collectives take less than this share of the time, they are too few to say how fast.",
    "percent",
)

# GPUs that are slow from the start

COMPARED_LEAST = Setting(
    "compared_least",
    8,
    "Fewer GPUs than this that are busy in the same way are no comparison.",
    "count",
)
COMPARED_BUSY = Setting(
    "compared_busy",
    0.5,
    "Above this share of its time in a state, a GPU is busy with it.",
    "percent",
)
BEHIND_FROM = Setting(
    "behind_from",
    0.01,
    "A GPU or node is slow if it surely takes longer than its peers by more than this share.",
    "percent",
)
BEHIND_PEERS = Setting(
    "behind_peers", 4, "Fewer GPUs of a job than this are no comparison of GPUs.", "number"
)
BEHIND_WAITS = Setting(
    "behind_waits",
    0.02,
    "Where no GPU of a job waits for more than this share, nothing tells which one is slow.",
    "percent",
)
BEHIND_WORKS = Setting(
    "behind_works", 0.1, "A GPU that computes for less is not compared with its peers.", "percent"
)
BEHIND_HOURS = Setting(
    "behind_hours", 3, "Fewer hours of a job on a GPU than this are no comparison.", "number"
)
NEAR_POWER_LIMIT = Setting(
    "near_power_limit",
    0.85,
    "From this share of its power limit, the limit may lower a GPU's clock now and then.",
    "percent",
)
SLOW_GPU = Setting(
    "slow_gpu",
    0.8,
    "A GPU that reaches less than this share of what others do is slow, where another alert asks; "
    "the threshold of GpuSlow, too, as long as no other is set there.",
    "percent",
)
PACE_KNOWN = Setting(
    "pace_known",
    6,
    "Looks, five minutes apart, at a job at work before a rank that waits less than it did counts "
    "as one that has become slow.",
    "count",
)

# Memory and filesystems

SWAP_READ = Setting(
    "swap_read",
    1e6,
    "Bytes a second read back from swap above which a node is short of memory.",
    "bytes",
)
MEMORY_FULL_WITHIN = Setting(
    "memory_full_within",
    1800,
    "Memory runs out if there will be none within these seconds, at the pace of the last five "
    "minutes and of the five before.",
    "seconds",
)
MEMORY_LOW = Setting(
    "memory_low",
    0.2,
    "A node that has no less than this share of its memory left does not run out of it.",
    "percent",
)
MEMORY_HIGH = Setting(
    "memory_high",
    0.8,
    "A job that uses no more than this share of its memory limit does not run out of it.",
    "percent",
)
MEMORY_STALLED = Setting(
    "memory_stalled",
    0.1,
    "Above this share of the time in which all programs of a node wait for memory, it is short of "
    "it.",
    "percent",
)
SHM_FULL_WITHIN = Setting(
    "shm_full_within",
    600,
    "A /dev/shm that will be full in fewer seconds is in danger.",
    "seconds",
)
SHM_HARMS_FROM = Setting(
    "shm_harms_from",
    SHM_FULL,
    "Above this share of /dev/shm in use, harm on its node is its doing.",
    "percent",
)
FILLS_WITHIN = Setting(
    "fills_within",
    14400,
    "A filesystem fills up if it will be full within these seconds, at the pace of the last hour.",
    "seconds",
)
INODES_FREE = Setting(
    "inodes_free",
    0.001,
    "A filesystem with less than this share of its inodes takes no more files.",
    "percent",
)
ROOT_FREE = Setting(
    "root_free",
    0.005,
    "A root filesystem with less than this share of its space takes no more files.",
    "percent",
)
REMOTE_REQUESTS = Setting(
    "remote_requests",
    REMOTE_SHARE,
    "A node with no more requests in flight to a file server, on average, does not suffer if they "
    "are slow.",
    "number",
)

# Hardware

NVLINK_ERRORS = Setting(
    "nvlink_errors",
    10,
    "Errors of one kind in 15 minutes above which the NVLinks of a GPU are faulty.",
    "number",
)
NVLINK_PEERS = Setting(
    "nvlink_peers",
    0.5,
    "If no less than this share of a GPU's NVLinks or of a node's GPUs recover within an hour, the "
    "cause is not one link.",
    "percent",
)
RDMA_LINK_ERRORS = Setting(
    "rdma_link_errors",
    10,
    "Errors of an RDMA port's link in 15 minutes above which it is faulty.",
    "number",
)
RDMA_LOST_PACKETS = Setting(
    "rdma_lost_packets",
    300,
    "Signs of packets that an RDMA port lost and sent again in 15 minutes above which it is "
    "faulty.",
    "number",
)
RDMA_SENT_AGAIN = Setting(
    "rdma_sent_again",
    0.01,
    "Share of its bytes that an RDMA port, which repairs losses itself, sends again in 15 minutes "
    "above which it is faulty.",
    "percent",
)
RDMA_LINKS_LOST = Setting(
    "rdma_links_lost",
    2,
    "Times in an hour that an RDMA port lost its link above which it is faulty.",
    "number",
)
CONGESTED_FROM = Setting(
    "congested_from",
    10000,
    "Signs of congestion a second above which an RDMA port is congested; the dashboards draw it.",
    "number",
)
XID_REMEMBERED_FOR = Setting(
    "xid_remembered",
    XID_REMEMBERED,
    "Seconds for which an XID counts.",
    "seconds",
)
CLOCK_OFF = Setting(
    "clock_off",
    30,
    "Seconds from which a node's clock is wrong: what happened on the node is then dated by "
    "Prometheus' clock. The exporter reads the clock every few seconds.",
    "seconds",
)
CONTAINED_REMEMBERED = Setting(
    "contained_remembered",
    2 * XID_REMEMBERED,
    "Seconds for which an error of memory that was contained (XID 94) excuses lost data.",
    "seconds",
)
XIDS_OF_HARDWARE = Setting(
    "xids_of_hardware",
    _any(OF_HARDWARE),
    "XIDs after which a GPU cannot be used until it is reset or its node is restarted.",
)
XIDS_TO_LOOK_INTO = Setting(
    "xids_to_look_into",
    _any(tuple(xid for xid in those_that("ticket") if xid not in OF_NVLINK5)),
    "XIDs that take somebody to look into, with a ticket; of NVLink 5's, 144 to 150, the line in "
    "the kernel log decides.",
)
XIDS_OF_APPLICATIONS = Setting(
    "xids_of_applications",
    _any(those_that("info")),
    "XIDs after which a program is started again and the GPU goes on; they are only kept for a "
    "review. Nobody hears of those that are in none of the three.",
)
PARTS_COUNTED_FOR = Setting(
    "parts_counted_for",
    600,
    "Seconds after a person said that a node is repaired in which its parts are counted anew.",
    "seconds",
)
KNOWN_SHARE = Setting(
    "known_share",
    0.005,
    "Above this share of a day, what a GPU did was known.",
    "percent",
)

CERTIFICATE_LEFT = Setting(
    "certificate_left",
    2 * 86_400.0,
    "The certificate of an exporter's web server expires within this time: by then, whatever "
    "renews it has failed.",
    "seconds",
)

# Losses

STEP_UP = Setting(
    "step_up",
    0.75,
    "A loss began when it was last below this share of what it is, for five minutes on end.",
    "percent",
)

SETTINGS: dict[str, Setting] = {
    one.name: one for one in tuple(vars().values()) if isinstance(one, Setting)
}
"""Every setting by its name."""
