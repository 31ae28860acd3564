"""What a GPU shows of what its job does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpunode.gpu.ledger import STATES


def ledger(**shares: float) -> dict[str, float]:
    """Shares of time by state; the rest is ``compute``."""
    return {"compute": round(1.0 - sum(shares.values()), 9), **shares}


STEPS: Mapping[str, float] = {"step": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the sensors, the verdict and the client say while a GPU is used like this."""

    states: Mapping[str, float]
    cause: str = "none"
    """What the verdict names."""

    power: float = 0.8
    """The draw, as a share of the board's default limit."""

    busy: float = 1.0
    """The driver's utilisation."""

    works: bool = True
    """Whether the GPU computes, copies or communicates."""

    short_gaps: float = 0.0
    """How much of the time is ``starved`` in gaps that are short."""

    streak: bool = False
    """Whether every window is blocked."""

    breaks: float = 0.0
    """The seconds after which a streak of blocked windows breaks, and begins again."""

    phases: Mapping[str, float] = field(default_factory=lambda: STEPS)
    """How a client divides its time."""

    slower: float = 1.0
    """How much longer a step takes than it can."""

    loss: float = 1.0
    loss_grows: float = 0.0
    """What the loss gains a minute."""

    finite: bool = True
    process: bool = True
    holds: bool = True
    """Whether the owner still holds the GPU."""

    requests: float = 0.0
    """Requests a second."""

    latency: float = 0.2
    """Seconds that a request takes."""

    compilers: float = 0.0
    reason: str = ""
    """Why others wait for it, as far as its node can tell."""

    @property
    def steps(self) -> float:
        """How much of the time goes to steps that end."""
        return self.phases.get("step", 0.0) + self.phases.get("data", 0.0)

    @property
    def waits_for_storage(self) -> bool:
        """Whether its processes cannot be interrupted."""
        storage = self.cause == "data_loading_storage" and not self.works
        return storage or self.reason == "uninterruptible"

    @property
    def pauses(self) -> bool:
        """Whether no step is due, by the client's words."""
        return bool(self.phases) and not self.steps


NOTHING = Behaviour(
    states={"idle": 1.0}, power=0.17, busy=0.0, works=False, cause="unexplained", phases={}
)
BLOCKED = Behaviour(
    states={"blocked": 1.0},
    power=0.28,
    works=False,
    streak=True,
    phases={},
    cause="stalled_collective",
)
TRAINS = Behaviour(states=ledger(communication=0.08, blocked=0.03))
FREE = replace(NOTHING, states={"free": 1.0}, power=0.11, process=False, holds=False, cause="none")
SERVES = Behaviour(
    states={"compute": 0.05, "starved": 0.95},
    power=0.2,
    busy=0.05,
    cause="no_requests",
    requests=2.0,
)
ELSEWHERE = replace(NOTHING, phases={"checkpoint": 1.0}, cause="checkpoint")

BEHAVIOURS: Mapping[str, Behaviour] = {
    # Training.
    "trains": TRAINS,
    "accumulates": replace(
        TRAINS,
        states=ledger(starved=0.35),
        cause="host_compute",
        power=0.55,
        busy=0.65,
    ),
    "starves": replace(
        TRAINS,
        states=ledger(starved=0.6),
        cause="data_loading_cpu",
        power=0.35,
        busy=0.4,
        phases={"step": 0.4, "data": 0.6},
    ),
    "straggles": replace(TRAINS, states=ledger(starved=0.02), cause="thermal"),
    "waits for a straggler": replace(
        TRAINS, states=ledger(blocked=0.45), cause="straggler", power=0.55
    ),
    "communicates": replace(
        TRAINS, states=ledger(communication=0.6), cause="communication", power=0.5
    ),
    "is a stage": replace(TRAINS, states=ledger(blocked=0.3), cause="straggler"),
    "validates now and then": replace(TRAINS, phases={"step": 0.88, "evaluation": 0.12}),
    "diverges": replace(TRAINS, loss_grows=0.5),
    "trains on NaN": replace(TRAINS, finite=False),
    "evaluates": replace(TRAINS, phases={"evaluation": 1.0}),
    "evaluates and says nothing": replace(TRAINS, phases={}),
    "saves": ELSEWHERE,
    "compiles": replace(
        NOTHING, states={"starved": 1.0}, cause="compile", phases={"compile": 1.0}, compilers=8.0
    ),
    "starts": replace(NOTHING, phases={"other": 1.0}),
    "learns by reinforcement": replace(
        TRAINS,
        states=ledger(starved=0.6),
        cause="host_compute",
        power=0.35,
        busy=0.4,
    ),
    # A stall.
    "hangs": BLOCKED,
    "hangs with breaks": replace(BLOCKED, breaks=60.0, cause="straggler"),
    "hangs in its evaluation": replace(BLOCKED, phases={"evaluation": 1.0}),
    "waits": replace(BLOCKED, cause="straggler"),
    "is late": replace(NOTHING, reason="unknown"),
    "stands": NOTHING,
    # Serving and people.
    "serves": SERVES,
    "is asked rarely": replace(
        SERVES, states={"compute": 0.05, "starved": 0.6, "idle": 0.35}, requests=1 / 15
    ),
    "is asked by nobody": replace(NOTHING, cause="no_requests"),
    "decodes": replace(
        SERVES,
        states={"compute": 0.85, "starved": 0.15},
        short_gaps=0.15,
        cause="memory_bandwidth",
        power=0.4,
        busy=0.99,
        requests=5.0,
        latency=12.0,
    ),
    "shares its GPU": replace(
        SERVES, states={"compute": 0.5, "starved": 0.5}, short_gaps=0.1, busy=0.6
    ),
    "is tried out": replace(
        TRAINS, states={"compute": 0.12, "starved": 0.88}, cause="no_requests", power=0.2, busy=0.12
    ),
    "is thought about": replace(NOTHING, cause="no_requests"),
    "grinds": replace(BLOCKED, cause="straggler"),
    # No process.
    "crashed": replace(FREE, holds=True),
    "is gone": FREE,
}
"""What a job does on a GPU; options of a scenario replace single fields."""

NUMBERS = ("power", "busy", "slower", "requests", "latency", "breaks", "loss", "loss_grows")
"""The options that are numbers, beside the states."""


def behaviour_with(found: Behaviour, state: str, share: float) -> Behaviour:
    """A behaviour with so much of one state, which takes time from the others."""
    rest = 1.0 - found.states.get(state, 0.0)
    scale = (1.0 - share) / rest if rest else 0.0
    states = {name: spent * scale for name, spent in found.states.items()}
    return replace(found, states={**states, state: share})


def behaviour(name: str, options: Mapping[str, str]) -> Behaviour:
    """A row with a scenario's options; ``starved=0.3`` takes time from the other states."""
    if name not in BEHAVIOURS:
        raise LookupError(f"no behaviour is called {name!r}")
    found = BEHAVIOURS[name]
    for option, value in options.items():
        if option == "short_gaps":
            found = behaviour_with(found, "starved", float(value))
            found = replace(found, short_gaps=float(value))
        elif option in STATES:
            found = behaviour_with(found, option, float(value))
        elif option in ("cause", "reason"):
            found = replace(found, **{option: value})  # type: ignore[arg-type]
        elif option in NUMBERS:
            found = replace(found, **{option: float(value)})  # type: ignore[arg-type]
        else:
            raise LookupError(f"a job that {name} has no option {option!r}")
    return found
