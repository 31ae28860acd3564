"""The lines above all else: what holds a job up now, and what took its time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.report import words
from gpunode.report.history import RULE_INTERVAL
from gpunode.report.job import RECENT, JobGpu
from gpunode.report.runs import Run
from gpunode.report.sections.losses import losses_of
from gpunode.report.view import clean, held
from gpunode.report.why.broke import broke
from gpunode.report.why.view import (
    MAX_PLACES,
    OWN_STATES,
    CauseHours,
    JobView,
    is_as_much,
    known_lost,
    node_list,
    useful_share,
)
from gpunode.report.words import MIN_HOURS, amount, as_text, clock, lasting, number
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.causes.cause import MIN_LOSS as CLEARLY
from gpunode.verdict.held_up import HANG_SECONDS, stands_still
from gpunode.verdict.reasons import GONE, REASONS

KUBERNETES_NAME = re.compile("[a-z0-9][a-z0-9.-]{0,252}")
"""A name of a node, namespace, pod or container, which a shell takes as it is:
https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""

RATE = 300
"""Seconds of which a rate is the mean."""


def finding(view: JobView) -> str:
    """The lines above all; what holds the job up now comes first."""
    run = view.run
    began = "at least since" if run.cut else "from"
    nodes = node_list(view.past.nodes)
    if len(view.past.nodes) != 1:
        nodes = f"{amount(len(view.past.nodes), 'node')} ({nodes})" if nodes else "no known node"
    name = (
        f"{view.name} held {amount(view.gpus, 'GPU')} on {nodes} for {lasting(run.seconds)}, "
        f"{began} {clock(run.first)} to {clock(run.last)} UTC{_ending(run)}."
    )
    if view.held <= 0:
        return f"{name}\nNothing is recorded of where its time went. {gaps_text(view)}".strip()
    if view.short:
        return "\n".join((*_so_far(view), name, gaps_text(view)))
    now = _current_cause(view)
    price = f", worth {number(view.lost * view.price)}" if view.price is not None else ""
    unknown = f"{number(view.unknown)} are unknown; of the rest, "
    says = [
        *now.says,
        name,
        f"Of {amount(view.held, 'GPU hour')}, {unknown if view.unknown >= MIN_HOURS else ''}"
        f"{as_text(useful_share(view.states), 'share')} did useful work; "
        f"{number(view.lost)} were lost{price}.",
        *_verdict(view, now),
    ]
    says += broke(view)
    if fired := sorted({clean(one.alert) for one in view.past.alerts if not one.instance}):
        says.append(f"Alerts about it meanwhile: {', '.join(fired)}.")
    says.append(gaps_text(view))
    return "\n".join(filter(None, says))


def _so_far(view: JobView) -> Iterator[str]:
    """What the latest verdicts say of a run of which no rate can be told yet."""
    past = view.past
    if not view.run.goes_on:
        return
    if (now := _stands_still(view)) is not None:
        yield from now.says
    elif judged := sum(past.causes_now.values()):
        most = sorted(past.causes_now.items(), key=lambda item: -item[1])
        says = "; ".join(f"{number(gpus)} {_activity(cause)}" for cause, gpus in most if gpus)
        yield f"So far, of {amount(judged, 'GPU')}: {says}."
    else:
        yield "So far there is no verdict on its GPUs."


def _ending(run: Run) -> str:
    """Whether it has ended, as far as is known: the last minute is not yet recorded."""
    if run.goes_on:
        return ", and still runs"
    if run.unseen_since:
        return "; nothing of its cluster is recorded after that, so its end is not known"
    return "; it has ended"


@dataclass(frozen=True, slots=True)
class CurrentCause:
    """What holds a job up now, and the cause whose remedy goes with it."""

    says: tuple[str, ...] = ()
    remedied: str = ""
    hangs: bool = False


def _current_cause(view: JobView) -> CurrentCause:
    """Whether a job that goes on is held up now, whatever it was like before."""
    past = view.past
    if not view.run.goes_on:
        return CurrentCause()
    if (hang := _stands_still(view)) is not None:
        return hang
    states = past.states_now
    if known_lost(states) <= BOUND * held(states):
        return CurrentCause()
    losses = [one for one in losses_of(states, past.causes_now) if one.name != "unknown"]
    if not losses:
        return CurrentCause()
    most = losses[0]
    alike = [one for one in losses if is_as_much(one.given_back, most.given_back, held(states))]
    lost_now = as_text(known_lost(states) / held(states), "share")
    does = "; and ".join(_activity(one.name) for one in alike)
    says = f"In the last {lasting(RATE)}, {lost_now} of its time was lost: GPUs are {does}."
    if {one.name for one in alike} <= {one.name for one in view.most}:
        return CurrentCause((says,))
    remedy = view.remedy(most.cause) if most.cause else most.remedy
    return CurrentCause((says, f"What helps: {remedy}"), most.name)


def _stands_still(view: JobView) -> CurrentCause | None:
    past = view.past
    still = {cause: gpus for cause, gpus in past.causes_now.items() if stands_still(cause)}
    if (past.stalled_now or 0.0) > HANG_SECONDS or sum(still.values()) > BOUND * sum(
        past.causes_now.values()
    ):
        return _hang(view, max(still, key=lambda cause: still[cause], default=""))
    return None


def _hang(view: JobView, cause: str) -> CurrentCause:
    """Since when nothing goes on, for whom the GPUs wait, and what to do about it."""
    past = view.past
    since = f"Hangs since {clock(_still_since(view))} UTC"
    awaited = [(place, REASONS[reason]) for place, reason in past.awaited_now if reason in REASONS]
    wait = sum(
        gpus
        for name, gpus in past.causes_now.items()
        if name in CAUSES and CAUSES[name].waits_for_peers
    )
    if not awaited:
        meaning = f": {CAUSES[cause].meaning}" if cause else ": none of its GPUs works"
        helps = [f"What helps: {view.remedy(cause)}"] if cause in words.REMEDIES else []
        return CurrentCause((f"{since}{meaning}.", *helps), cause, hangs=True)
    waited_for = " and ".join(
        f"{_rank(place)}, {reason.guidance.does}" for place, reason in awaited[:MAX_PLACES]
    )
    more = f", and for {len(awaited) - MAX_PLACES} more" if len(awaited) > MAX_PLACES else ""
    waiting = wait or max(1.0, view.gpus - len(awaited))
    place, reason = awaited[0]
    return CurrentCause(
        (
            f"{since}: {amount(waiting, 'GPU')} {'waits' if waiting == 1 else 'wait'} for "
            f"{waited_for}{more}.",
            *([] if reason is GONE else _process(place, view)),
            f"What helps: {view.remedy_of(place, reason)}",
        ),
        cause,
        hangs=True,
    )


def _process(place: JobGpu, view: JobView) -> Iterator[str]:
    """How to see where the process on a GPU stands, and how to come to it in a pod.

    A shell on the node by kubectl has the PIDs of the node:
    https://kubernetes.io/docs/reference/kubectl/generated/kubectl_debug/
    """
    node, process = place.instance, view.process_of(place)
    stacks = f"`gpunode stacks --gpu {clean(place.gpu)}`"
    if process is None:
        yield f"On {clean(node)}: {stacks}, which has the PID."
        return
    yield f"On {clean(node)}, where its PID is {process.pid}: {stacks}."
    pod, namespace, container = process.pod, process.namespace, process.container
    if all(map(KUBERNETES_NAME.fullmatch, (node, pod, namespace))):
        only = f" -c {container}" if KUBERNETES_NAME.fullmatch(container) else ""
        yield (
            f"Its pod is {namespace}/{pod}, where it has another PID: `kubectl exec -it -n "
            f"{namespace} {pod}{only} -- sh`. Or ask the operator for a shell on the node: "
            f"`kubectl debug node/{node} -it --image=busybox --profile=sysadmin -- chroot /host`."
        )


def _rank(place: JobGpu) -> str:
    if not place.rank:
        return clean(str(place))
    return f"rank {clean(place.rank)} ({clean(place.instance)}, GPU {clean(place.gpu)})"


def _still_since(view: JobView) -> float:
    """When the job came to stand still; if no rule told, by the windows of its verdicts."""
    past = view.past
    if past.stalled_now:
        return view.run.last - past.stalled_now
    since = view.run.last
    for end in sorted(past.causes, reverse=True):
        causes = past.causes[end]
        still = sum(causes[name] for name in causes if name in CAUSES and CAUSES[name].stands_still)
        if still <= BOUND * sum(causes.values()):
            break
        since = past.begin(end)
    return since


def _verdict(view: JobView, now: CurrentCause) -> Iterator[str]:
    """What held it up most; that nothing did only where it was looked for."""
    says = []
    if view.unknown >= CLEARLY * view.held:
        says.append(
            f"For {as_text(view.unknown / view.held, 'share')} of its time the sensors could not "
            "tell what the GPUs did."
        )
    if view.judged < 1 - CLEARLY:
        says.append(
            f"For {as_text(1 - view.judged, 'share')} of its GPU hours there is no verdict, so a "
            "cause may be missing."
        )
    yield " ".join(says)
    for one in view.most:
        yield from _main_cause(one, view, now)
    if not view.most and not says:
        nothing = "Until then, nothing" if now.says else "Nothing"
        yield f"{nothing} took a tenth of the time that was recorded."


def _main_cause(first: CauseHours, view: JobView, now: CurrentCause) -> Iterator[str]:
    """The cause and what it would give back, from what it was seen, and what helps."""
    yield (
        f"For {as_text(first.took / view.held, 'share')} of their time, its GPUs were "
        f"{_activity(first.name)}; {_gain_text(first, view)}."
    )
    for seen in (first.late, "; ".join(first.seen)):
        if seen:
            yield f"{seen[0].upper()}{seen[1:]}."
    if not now.hangs and first.name != now.remedied:  # of a hang that lasts, one remedy is enough
        yield f"What helps: {first.remedy}"


def _activity(name: str) -> str:
    """What GPUs with a cause or in a state do, to follow ``are``."""
    return CAUSES[name].guidance.does if name in CAUSES else OWN_STATES[name]


def _gain_text(one: CauseHours, view: JobView) -> str:
    """What removing the cause would give back, in a sentence."""
    back = one.back
    worth = f", worth {number(back.hours * view.price)}" if view.price is not None else ""
    lately = _from_now_on(one, view)
    over = " over the whole run" if lately else ""
    if back.estimate is None:
        at_most = f": the job would be {back.faster}{over}" if back.faster else ""
        says = f"mending it gives back at most {amount(back.hours, 'GPU hour')}{worth}{at_most}"
    elif back.estimate < CLEARLY * view.held:
        says = (
            f"mending it gives back little, {number(back.estimate)} GPU hours{worth}, as most of "
            f"that time would pass all the same: the job would be {back.faster}{over}"
        )
    else:
        says = f"without it the job would be about {back.faster}{over}{worth}"
    return f"{says}{lately}"


def _from_now_on(one: CauseHours, view: JobView) -> str:
    """What mending would give by the last half hour, where the whole run says another thing."""
    lately = view.past.lately
    if lately is None or one.name not in CAUSES:
        return ""
    if one.lately is None:
        judged = sum(lately.causes.values()) >= (1 - CLEARLY) * held(lately.states) > 0
        return f"; in the last {lasting(RECENT)} it was not named" if judged else ""
    if not one.lately.faster or one.lately.faster == one.back.faster:
        return ""
    since = clock(view.run.end - RECENT)
    return f"; from now on it would be {one.lately.faster}, by what is recorded since {since} UTC"


def gaps_text(view: JobView) -> str:
    """What is unknown of the run, so that it is not taken for good."""
    says = []
    if view.short:
        says.append(
            "Where its time went is told of ten minutes or more, as rules look at five at a time"
            + ("; ask again later." if view.run.goes_on else ".")
        )
    if view.held <= 0:
        says.append(f"Not recorded: {lasting(view.missing)}.")
    elif view.missing > 2 * RULE_INTERVAL:
        says.append(
            f"For {lasting(view.missing)} of it nothing was recorded; that time is left out."
        )
    fewest = min(view.past.gpus.values(), default=0)
    if fewest < view.gpus:
        says.append(f"At times only {fewest} of its {view.gpus} GPUs were seen.")
    return " ".join(says)
