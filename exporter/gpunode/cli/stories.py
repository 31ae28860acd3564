"""The scenes of ``gpunode demo``: tapes, each with the hour before it, one after the other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import cast

from gpunode.cli.settings.demo import DemoSettings
from gpunode.gpu.activity import UTILIZATION
from gpunode.loop import Loop
from gpunode.loop.playing import NowPlaying
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from gpunode.verdict.findings import status, summary_sentence

ORDER = ("storage", "hang", "p2p", "throttled", "shm")
"""The order in which the demo plays its incidents; others follow by name."""

LEAD_SECONDS = 3600.0
"""Seconds before an incident that are filled in, where its tape has what came before: as many as
the page can show."""

FIRST_LEAD_SECONDS = 300.0
"""As many before the first incident, so that nobody waits; the others are filled in meanwhile."""

SCENE_SECONDS = 44.9
"""Seconds of a tape that has what came before: enough to read it."""

LOOK = 0.1
"""Seconds between two looks at what is shown."""


def order_tapes(tapes: Iterable[Path]) -> list[Path]:
    """The tapes in the order in which the demo plays them."""

    def place(path: Path) -> tuple[int, str]:
        name = path.name.partition(".")[0]
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)

    return sorted(tapes, key=place)


@dataclass(slots=True)
class Scene:
    """An incident: its tape, and what is known of it so far."""

    tape: TapeNode
    loop: Loop
    place: str
    moments: Iterator[float]
    ready: threading.Event = field(default_factory=threading.Event)

    @staticmethod
    def of(path: Path, settings: DemoSettings, place: str, before: float = LEAD_SECONDS) -> Scene:
        """The scene of a tape, at its beginning, with so many seconds before it."""
        tape = TapeNode(path, before)
        loop = watch(cast(Node, tape), settings, NowPlaying(tape, place))
        # A tape that starts over at its opening's end does not go on as it was; a hang does.
        goes_on = tape.again_from > tape.opening
        end = tape.lead + (SCENE_SECONDS if goes_on else min(SCENE_SECONDS, tape.end))
        moments = loop.replay(tape.clock, end)
        if tape.lead:  # what is shown last is a whole window, not the rest up to the end
            moments = takewhile(lambda moment: moment < end, moments)
        return Scene(tape, loop, place, moments)

    @property
    def title(self) -> str:
        """What happens, and where in the demo."""
        title = self.tape.comment or self.tape.name
        return f"{self.place}: {title}" if self.place else title

    def prepare(self) -> None:
        """Fill in the time before."""
        for moment in self.moments:
            if moment >= self.tape.lead:
                break
        self.ready.set()

    def play(self, speed: float) -> Iterator[None]:
        """Play on from where the incident begins; yields ten times a second and at the end."""
        begin = shown = time.monotonic()
        for moment in self.moments:
            due = begin + (moment - self.tape.lead) / speed
            while (wait := due - time.monotonic()) > 0:
                time.sleep(min(wait, LOOK))
            if time.monotonic() - shown >= LOOK:
                shown = time.monotonic()
                yield
        yield

    def says(self) -> str:
        """What gpunode says of it now; empty while GPUs are not judged yet."""
        now = status(self.loop)
        if not now.gpus or not all(gpu.verdict for gpu in now.gpus):
            return ""
        return summary_sentence(now)


def utilisation(loop: Loop) -> str:
    """The utilisation that ``nvidia-smi`` shows: of most GPUs, and those that differ."""
    values = loop.values((UTILIZATION,))
    # As what most show differs by a few percent from one look to the next, it is in tens.
    shares = {
        labels[0]: min(100, round(10 * value) * 10) for (_, labels), (value, _) in values.items()
    }
    if not shares:
        return "nothing"
    usual, _ = Counter(shares.values()).most_common(1)[0]
    others = [f"GPU {gpu}: {share} %" for gpu, share in shares.items() if share != usual]
    if len(others) > 1:
        return f"{min(shares.values())} to {max(shares.values())} %"
    return f"{usual} %{f' ({others[0]})' if others else ''}"


class Cast:
    """All scenes; ``loop`` is of the one on stage."""

    def __init__(self, settings: DemoSettings, tapes: Sequence[Path]) -> None:
        self.settings = settings
        self.tapes = tapes
        self.next = self._begun(0, FIRST_LEAD_SECONDS)
        self.loop = self.next.loop

    def scenes(self, waiting: Callable[[Scene], None]) -> Iterator[Scene]:
        """Each scene, once the time before it is filled in; calls ``waiting`` meanwhile."""
        for number in range(len(self.tapes)):
            scene = self.next
            self.loop = scene.loop  # the page shows how far the time before it is filled in
            waiting(scene)  # at once: the first wait may be long on a busy machine
            while not scene.ready.wait(LOOK):
                waiting(scene)
            self.next = self._begun((number + 1) % len(self.tapes))
            yield scene

    def _begun(self, number: int, before: float = LEAD_SECONDS) -> Scene:
        """A scene whose time before is being filled in."""
        count = len(self.tapes)
        place = f"{number + 1} of {count}" if count > 1 else ""
        scene = Scene.of(self.tapes[number], self.settings, place, before)
        threading.Thread(target=scene.prepare, name="prepare", daemon=True).start()
        return scene
