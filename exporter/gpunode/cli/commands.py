"""The commands; ``COMMANDS`` at the end lists them."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, get_args

from gpunode import __version__
from gpunode.audit.source import audit
from gpunode.cli import rights, streams
from gpunode.cli.log import StandardError
from gpunode.config import (
    INCIDENTS,
    STORIES,
    AdviseSettings,
    AuditSettings,
    CalibrateSettings,
    CommandSettings,
    CompletionSettings,
    DcgmSettings,
    DemoSettings,
    DoctorSettings,
    IncidentCommandSettings,
    IncidentsCommandSettings,
    McpSettings,
    NcclBenchSettings,
    PathSettings,
    RecordSettings,
    ReplaySettings,
    ReportSettings,
    RulesSettings,
    RunSettings,
    StacksCommandSettings,
    TopSettings,
    UsageError,
    WebSettings,
    WhySettings,
    leaves,
    load,
    option,
)
from gpunode.driver.driver import Gpu, listed
from gpunode.driver.errands import DRIVER_TIMEOUT
from gpunode.driver.vendors import open_drivers
from gpunode.export.exposition import Exposition
from gpunode.export.web.access import AccessFile
from gpunode.export.web.entrance import Entrance
from gpunode.gpu.calibration import implausible, kept, written
from gpunode.gpu.models import Ceilings
from gpunode.gpu.probe import ProbeError, measured, probe
from gpunode.handover.formats import FORMATS
from gpunode.incidents.black_box import BlackBox
from gpunode.loop import MORE_THREADS, Loop
from gpunode.loop.playing import NowPlaying
from gpunode.nccl.bench import BANDWIDTH_LOW, Measurement
from gpunode.nccl.run import BenchError, measure
from gpunode.node.descriptors import DescriptorsNode
from gpunode.node.local import LocalNode
from gpunode.node.node import Node
from gpunode.node.tape import RecordingNode, TapeError, TapeNode, TapeWriter
from gpunode.sources import watch
from gpunode.text import escaped, json_for_terminal
from gpunode.verdict.asking import LooksOnDemand

log = logging.getLogger(__name__)

COLD = 60.0
"""Seconds to wait for the GPUs of a node without persistence mode, which the driver wakes one by
one; the daemon does not wait, as it finds them later."""

ALIKE = 0.65
"""Words are taken for one another from this ratio of ``difflib`` on."""

LONGEST_OPTION = 80
"""Characters of an option in a message."""

HEARD = 1.0
"""Seconds within which a signal is heard that comes just before a wait and so does not end it."""

ARENA_MAX = -8
"""``M_ARENA_MAX`` of malloc.h."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; on misuse, print one line to standard error and exit with 2."""
    streams.open_missing()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given in (["--version"], ["version"]):
            with streams.printing():
                print(f"gpunode {__version__}")
            return
        if given in (["--help"], ["-h"], ["help"]):
            with streams.printing():
                print(overview())
            return
        name = given.pop(0) if given and not given[0].startswith("-") else "run"
        if name not in COMMANDS:
            raise UsageError(
                f"{name}: unknown command; {_meant(name, COMMANDS)}choose from "
                f"{', '.join(COMMANDS)}"
            )
        kind, command = COMMANDS[name]
        _refuse_unknown_options(name, given)
        with streams.printing():  # the help
            settings = load(kind, f"gpunode {name}", given)
        logging.basicConfig(level=settings.log.level.upper(), handlers=[StandardError()])
        command(settings)
    except (UsageError, TapeError) as error:
        streams.complain(f"gpunode: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def overview() -> str:
    """What ``gpunode --help`` prints."""
    lines = ["usage: gpunode [COMMAND] [OPTIONS]", "", "commands (default: run):"]
    lines += [f"  {name:10} {kind.__doc__}" for name, (kind, _) in COMMANDS.items()]
    lines += ["  helper     Read for the daemon what takes privilege, in a process of its own."]
    return "\n".join([*lines, "", "gpunode COMMAND --help shows its options."])


def _refuse_unknown_options(name: str, given: Iterable[str]) -> None:
    """Raise ``UsageError`` for an option that the command lacks: who has it, or which is meant."""
    having: dict[str, list[str]] = {}
    for command, (kind, _) in COMMANDS.items():
        for path, field in leaves(kind.model_fields):
            having.setdefault(option(path, field), []).append(command)
    own = [wanted for wanted, commands in having.items() if name in commands]
    for argument in given:
        if argument == "--":
            return
        wanted = argument.partition("=")[0].replace("--no-", "--")
        if not wanted.startswith("--") or wanted in (*own, "--help"):
            continue
        form = _format(wanted, COMMANDS[name][0])
        if wanted in having:
            raise UsageError(
                f"{wanted}: `gpunode {name}` has no such option; "
                f"{f'{form}; ' if form else ''}these commands have it: {', '.join(having[wanted])}"
            )
        typed = escaped(argument.partition("=")[0], LONGEST_OPTION)
        meant = form or _meant(wanted, own).strip() or f"`gpunode {name} --help` lists its own"
        raise UsageError(f"{typed}: `gpunode {name}` has no such option; {meant}")


def _format(wanted: str, kind: type[CommandSettings]) -> str:
    """How to ask for a format that somebody takes for an option; empty if it is none."""
    fields = kind.model_fields
    form = wanted.removeprefix("--")
    if not {"format", "output"} <= fields.keys() or form not in get_args(
        fields["format"].annotation
    ):
        return ""
    return f"say --format={form} --output=FILE"


def _meant(word: str, among: Iterable[str]) -> str:
    """A question after those of these words that are nearly it; empty if none is."""
    close = difflib.get_close_matches(word, among, 3, ALIKE)
    return f"did you mean {' or '.join(close)}? " if close else ""


def run(settings: RunSettings) -> None:
    """Watch this node until told to stop."""
    signal.signal(signal.SIGHUP, _stay)
    web, entrance, serving = server(settings.web, lambda: loop)
    node, box = boxed(watched_node(settings.path, settings.dcgm), settings)
    loop = watch(node, settings, *box, entrance, LooksOnDemand(node, settings))
    signal.signal(signal.SIGTERM, _end)
    _start(loop)
    log.info("gpunode %s listens on %s", __version__, web.listen_address)
    serving()
    loop.stop()


def record(settings: RecordSettings) -> None:
    """Record what this node answers to a tape."""
    node = watched_node(settings.path, settings.dcgm)
    try:
        tape = TapeWriter(settings.file, node, settings.max_bytes, settings.comment)
    except OSError as error:
        raise UsageError(f"{settings.file}: {error.strerror}") from error
    recorded = RecordingNode(node, tape)
    loop = watch(recorded, settings)
    signal.signal(signal.SIGTERM, _end)
    try:
        _start(loop)
        end = time.monotonic() + settings.duration
        while (left := end - time.monotonic()) > 0 and not tape.filled.wait(min(left, HEARD)):
            pass
    finally:
        loop.stop()
        try:
            tape.close()
            size = settings.file.stat().st_size
        except OSError as error:
            raise UsageError(f"{settings.file}: {error.strerror}") from error
    log.info("recorded %s, %d bytes", settings.file, size)


def replay(settings: ReplaySettings) -> None:
    """Play one tape and print the result."""
    tape = next(iter(named(settings.file, INCIDENTS, STORIES)), settings.file)
    if not tape.exists():
        names = recorded(INCIDENTS)
        raise UsageError(
            f"{settings.file}: {_meant(str(settings.file), names)}neither a tape nor one of "
            f"{', '.join(names)}"
        )
    node = TapeNode(tape)
    played, box = boxed(node, settings)
    loop = watch(played, settings, *box, NowPlaying(node))
    if settings.speed:
        _, _, serving = server(settings.web, lambda: loop)
        threading.Thread(target=serving, daemon=True).start()
    for _ in play(loop, node, settings.speed, settings.times):
        pass
    with streams.printing():
        if settings.print == "metrics":
            print(Exposition(loop.samples).encode("")[0].decode(), end="")
        else:
            from gpunode.cli.table import PipedConsole, rows, table

            PipedConsole().print(table(rows(loop, node.name), node.comment))


def boxed(node: Node, settings: RunSettings | ReplaySettings) -> tuple[Node, tuple[BlackBox, ...]]:
    """The node as the black box hears it, and the box, if there is to be one."""
    if not settings.incident.keep:
        return node, ()
    box = BlackBox(node, settings.incident, code=settings.stacks.code)
    return box.node, (box,)


def named(name: Path, *folders: Path) -> list[Path]:
    """The tapes of this name in the package, unless there is such a file."""
    if name.exists() or name.name != str(name):
        return []
    return [tape for at in folders if (tape := at / f"{name}.jsonl.gz").exists()]


def recorded(folder: Path) -> list[str]:
    """The names of the tapes in a folder of the package."""
    return sorted(tape.name.partition(".")[0] for tape in folder.glob("*.jsonl.gz"))


def demo(settings: DemoSettings) -> None:
    """Play incidents, one after the other, then start over."""
    from gpunode.cli.demo import showing
    from gpunode.cli.stories import Cast, in_order

    logging.getLogger("gpunode").setLevel(logging.ERROR)  # a line would go through the table
    tapes = named(settings.incident, STORIES, INCIDENTS)[:1]
    tapes = tapes or in_order(settings.incident.glob("*.jsonl.gz"))
    if not tapes:
        names = ", ".join(path.name.partition(".")[0] for path in in_order(STORIES.glob("*.gz")))
        meant = _meant(str(settings.incident), names.split(", "))
        raise UsageError(
            f"{settings.incident}: {meant}neither a folder of tapes (*.jsonl.gz) nor one of {names}"
        )
    web, _, serving = server(settings.web, lambda: cast.loop)
    speed = "" if settings.speed == 1.0 else f", at {settings.speed:g} times real speed"
    with streams.printing(), showing(f"{web.here} shows the same as a page{speed}") as show:
        cast = Cast(settings, tapes)  # which keeps a core busy from here on
        threading.Thread(target=serving, daemon=True).start()
        while True:
            for scene in cast.scenes(show.preparing):
                show.playing(scene)
                for _ in scene.play(settings.speed):
                    show.playing(scene)
                show.played(scene)
            if settings.once:
                return


def top(settings: TopSettings) -> None:
    """Show the GPUs of a running daemon until told to quit."""
    from gpunode.cli.top import DaemonAddress, show

    server = DaemonAddress.of(settings)
    signal.signal(signal.SIGTERM, _end)  # so that the terminal is left as it was
    signal.signal(signal.SIGHUP, _end)
    with streams.printing():
        show(server, settings.interval, settings.json_output)


def stacks(settings: StacksCommandSettings) -> None:
    """Print where the processes on the GPUs stand."""
    from gpunode.cli.stacks import as_json, lines, shown

    found = shown(settings, lambda: local_node(settings.path, patience=COLD))
    with streams.printing():
        if settings.json_output:
            print(json.dumps(as_json(found), indent=2))
        else:
            print("\n".join(lines(found)), end="")
    if any(one.stacks is None for one in found):
        sys.exit(1)


def list_incidents(settings: IncidentsCommandSettings) -> None:
    """Print the incidents that are kept."""
    from gpunode.cli.incidents import IncidentStore, table
    from gpunode.incidents.incident import BRIEFS

    found = IncidentStore(settings).briefs()
    with streams.printing():
        if settings.json_output:
            print(json_for_terminal(BRIEFS.dump_json(found, indent=2).decode()))
        else:
            print("\n".join(table(found)))


def show_incident(settings: IncidentCommandSettings) -> None:
    """Print an incident, or those of a job, or write them to files."""
    if settings.job:
        try:
            from gpunode.cli import gathering
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is missing: install gpunode[report]") from error
        gathering.write(settings)
        return
    from gpunode.cli.incidents import IncidentStore, lines, write
    from gpunode.incidents.incident import as_json

    store = IncidentStore(settings)
    incident = store.incident(settings.incident)
    written = write(store, incident, settings)
    with streams.printing():
        if settings.json_output:
            print(json_for_terminal(as_json(incident).decode()))
        else:
            print("\n".join(written or lines(incident)))


def audit_node(settings: AuditSettings) -> None:
    """Audit this node once and print the results."""
    results = audit(local_node(settings.path, patience=COLD))
    with streams.printing():
        if settings.json_output:
            print(json.dumps([asdict(result) for result in results], indent=2))
        else:
            from gpunode.cli.table import PipedConsole, audit_table

            PipedConsole().print(audit_table(results))
    if any(result.status == "failed" for result in results):
        sys.exit(1)


def doctor(settings: DoctorSettings) -> None:
    """Examine every source for some seconds and print what it gives."""
    from gpunode.cli.doctor import examine

    logging.getLogger("gpunode").setLevel(logging.ERROR)  # what fails is in the table
    try:
        rights.lower()
        found = examine(local_node(settings.path, settings.dcgm, COLD), settings, COLD)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{error}: {MORE_THREADS}") from error
    with streams.printing():
        if settings.json_output:
            print(json.dumps(asdict(found), indent=2))
        else:
            from gpunode.cli.table import PipedConsole, doctor_table, unread_table

            console = PipedConsole()
            console.print(doctor_table(found.sources, console.width))
            for said in found.less_accurate:
                console.print(f"\n{said}.", highlight=False, markup=False)
            console.print("\n", unread_table(found.unread), sep="")
            console.print(f"\n{found.process}; {found.daemon}.", highlight=False, markup=False)
            for line in found.reporting:
                console.print(f"{line}.", highlight=False, markup=False)
            if found.chart:
                print("\nThe Helm chart needs these values on this node:\n")
                for name, value in found.chart.items():
                    print(f"    {name}: {value}")
            for said in found.chart_limits:
                console.print(f"\n{said}.", highlight=False, markup=False)


def _whole_gpus(node: LocalNode) -> tuple[list[Gpu], str]:
    """The GPUs without MIG instances, and what the drivers complain of."""
    found, errors = listed(node.drivers)
    return [gpu for gpu in found if not gpu.identity.mig], "; ".join(errors.values())


def _keep(path: Path, text: str) -> None:
    """Write a file that the daemon may read at any time. Raises ``OSError``."""
    _make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)  # whatever the umask: the daemon may run as another user
    fresh.rename(path)


def _make_folder(folder: Path) -> None:
    """Make a folder that any program can read. Raises ``OSError``."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)


def nccl_bench(settings: NcclBenchSettings) -> None:
    """Measure a collective, print the result, and save it for the daemon."""
    if settings.hosts or settings.result:
        from gpunode.cli import measuring

        measuring.between_nodes(
            settings, lambda: len(_whole_gpus(local_node(settings.path, patience=COLD))[0])
        )
        return
    try:
        gpus, why = _whole_gpus(local_node(settings.path, patience=COLD))
        if not gpus:
            raise BenchError(why or "the driver lists no GPU")
        count = settings.gpus or len(gpus)
        bandwidth = measure(settings.collective, count, settings.largest)
    except BenchError as error:
        raise UsageError(str(error)) from error
    model = gpus[0].identity.name
    measured = Measurement(settings.collective, count, model, time.time(), bandwidth)
    folder = Path(f"{settings.path.rootfs}/{settings.host.nccl_bench_folder}")
    try:
        _keep(folder / f"{settings.collective}.json", json.dumps(asdict(measured)))
    except OSError as error:
        log.warning("%s: cannot save the result for the metrics: %s", folder, error.strerror)
    with streams.printing():
        if settings.json_output:
            print(json.dumps({**asdict(measured), "expected": measured.expected}, indent=2))
        else:
            from gpunode.cli.table import PipedConsole, bench_table

            PipedConsole().print(bench_table(measured))
    if measured.expected and measured.best < BANDWIDTH_LOW * measured.expected:
        sys.exit(1)


def _calibrated(path: Path) -> dict[str, Ceilings]:
    """What was kept before. Raises ``OSError``, and ``ValueError`` with the file in it."""
    try:
        return kept(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def calibrate(settings: CalibrateSettings) -> None:
    """Measure what kernels reach on a GPU, print it, and keep it for the daemon."""
    if not settings.gpu.calibration_file:
        raise UsageError("gpu.calibration-file: is empty, so that there is nowhere to keep it")
    path = Path(f"{settings.path.rootfs}/{settings.gpu.calibration_file}")
    try:
        before = _calibrated(path)
        _make_folder(path.parent)
        with TemporaryFile(dir=path.parent):  # or the minute of measuring would be in vain
            pass
        gpus, why = _whole_gpus(local_node(settings.path, settings.dcgm, COLD))
        if settings.index >= len(gpus):
            raise ProbeError(why or f"there is no GPU {settings.index}")
        gpu = gpus.pop(settings.index)
        if not settings.json_output:
            print(f"GPU {gpu.identity.index}: measuring for about a minute.", file=sys.stderr)
        ceilings = measured(gpu, probe(gpu, gpus))
        if complaint := implausible(ceilings):
            raise ProbeError(f"{complaint}: something disturbed the measurement, so it is not kept")
        _keep(path, written({**before, gpu.identity.name: ceilings}))
    except (ProbeError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    with streams.printing():
        if settings.json_output:
            print(json.dumps(asdict(ceilings), indent=2))
        else:
            from gpunode.cli.table import PipedConsole, calibration_table

            PipedConsole().print(calibration_table(gpu.identity, ceilings))


def report(settings: ReportSettings) -> None:
    """Write the capacity report."""
    try:
        from gpunode.cli import reporting
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing: install gpunode[report]") from error
    if not reporting.write(settings):
        sys.exit(1)


def why(settings: WhySettings) -> None:
    """Say why a job is slow."""
    try:
        from gpunode.cli import explaining
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing: install gpunode[report]") from error
    explaining.write(settings)


def mcp(settings: McpSettings) -> None:
    """Answer an agent until it hangs up."""
    try:
        from gpunode.cli import agents
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing: install gpunode[mcp]") from error
    agents.serve(settings)


def advise(settings: AdviseSettings) -> None:
    """Print what is to be done."""
    from gpunode.cli import advising

    advised = advising.ask(settings)
    with streams.printing():
        print(FORMATS[settings.format](advised, not settings.fleet), end="")
    if any(one.unfit for one in advised):
        sys.exit(1)


def write_rules(settings: RulesSettings) -> None:
    """Write the rules for Prometheus."""
    from gpunode.cli import rules

    rules.write(settings)


def complete(settings: CompletionSettings) -> None:
    """Print the script of a shell."""
    from gpunode.cli import completion

    kinds = {name: kind for name, (kind, _) in COMMANDS.items()}
    with streams.printing():
        print(completion.SHELLS[settings.shell](list(completion.commands(kinds))), end="")


def local_node(
    path: PathSettings, dcgm: DcgmSettings | None = None, patience: float = DRIVER_TIMEOUT
) -> LocalNode:
    """The machine that this process runs on; ``patience`` is for its GPU drivers."""
    address, bindings = (dcgm.address, dcgm.bindings) if dcgm else ("", "")
    drivers = open_drivers(time.monotonic, address, bindings, patience)
    return LocalNode(path.rootfs, drivers, path.helpers)


def watched_node(path: PathSettings, dcgm: DcgmSettings) -> Node:
    """The same for sources, which are to tell a lack of descriptors from all else."""
    return DescriptorsNode(local_node(path, dcgm))


def play(loop: Loop, node: TapeNode, speed: float, times: int) -> Iterator[None]:
    """Play a tape at a speed (0: no pauses); yields ten times a second and at the end."""
    begin = shown = time.monotonic()
    for moment in loop.replay(node.clock, node.end * times):
        while speed and (wait := begin + moment / speed - time.monotonic()) > 0:
            time.sleep(min(wait, 0.1))
        if time.monotonic() - shown > 0.1:
            shown = time.monotonic()
            yield
    yield


def server(
    asked: WebSettings, loop: Callable[[], Loop]
) -> tuple[WebSettings, Entrance, Callable[[], None]]:
    """Where the loop is served, how that goes, and a function that serves it; the port is bound.

    Where the settings have port 0, it is one that was free.
    """
    from gpunode.export.web.app import create_app
    from gpunode.export.web.server import listen, serve

    path = asked.config.file
    entrance = Entrance(AccessFile(path) if path else None)
    try:
        listener = listen(asked.address)
    except OSError as error:
        of_kernel = (error.errno or 0) > 0  # or of the resolver, below 0
        why = os.strerror(error.errno or 0) if of_kernel else error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why += "; stop what listens there, or give another port with --web.listen-address"
        raise UsageError(f"web.listen_address: {asked.listen_address}: {why}") from error
    host, _, _ = asked.listen_address.rpartition(":")
    bound = f"{host}:{listener.getsockname()[1]}"
    web = asked.model_copy(update={"listen_address": bound})
    return web, entrance, lambda: serve(create_app(loop), listener, entrance)


def _share_memory() -> None:
    """Have all threads take their memory from one arena.

    The C library gives each thread one of its own, so that they need not wait for each other, and
    never moves what is free in one to another. Python's lock lets them take turns anyway.
    https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    with contextlib.suppress(AttributeError):  # musl has none
        ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


def _start(loop: Loop) -> None:
    """Start the loop, in threads that hold what reading processes needs only while they do."""
    _share_memory()
    try:
        rights.lower()
    except OSError as error:
        log.warning("%s: every thread keeps its own", error)
    try:
        loop.start()
    except RuntimeError as error:
        raise UsageError(f"{error}: {MORE_THREADS}") from error


def _end(*_: Any) -> NoReturn:
    sys.exit(0)


def _stay(*_: Any) -> None:
    """Survive what tells other daemons to read their settings again: counters begin at 0 anew."""
    log.warning("SIGHUP: the settings are read at the start only; restart gpunode for new ones")


COMMANDS: dict[str, tuple[type[CommandSettings], Callable[[Any], None]]] = {
    "run": (RunSettings, run),
    "record": (RecordSettings, record),
    "replay": (ReplaySettings, replay),
    "demo": (DemoSettings, demo),
    "top": (TopSettings, top),
    "stacks": (StacksCommandSettings, stacks),
    "incidents": (IncidentsCommandSettings, list_incidents),
    "incident": (IncidentCommandSettings, show_incident),
    "audit": (AuditSettings, audit_node),
    "doctor": (DoctorSettings, doctor),
    "nccl-bench": (NcclBenchSettings, nccl_bench),
    "calibrate": (CalibrateSettings, calibrate),
    "report": (ReportSettings, report),
    "why": (WhySettings, why),
    "mcp": (McpSettings, mcp),
    "rules": (RulesSettings, write_rules),
    "advise": (AdviseSettings, advise),
    "completion": (CompletionSettings, complete),
}
