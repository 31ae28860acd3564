"""Incidents in a folder: private, whole, bounded, and there after the daemon that wrote them."""

from __future__ import annotations

import calendar
import errno
import gzip
import json
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpunode import whole_file
from gpunode.cli.main import main
from gpunode.cli.settings.run import RunSettings
from gpunode.config.daemon import IncidentSettings
from gpunode.gpu import xids
from gpunode.incidents import black_box
from gpunode.incidents.black_box import BlackBox
from gpunode.incidents.folder import Folder, unpacked
from gpunode.incidents.incident import Brief, Incident, as_json, briefs, parse
from gpunode.mistake import UsageError
from gpunode.node.node import Node
from tests.incidents.test_black_box import Box, PlayedIncident, fail
from tests.machine import Machine
from tests.needs import as_root
from tests.prometheus.programs import exporter
from tests.verdict.stage import Actor

KIB = 1 << 10


def brief(number: int, **said: Any) -> Brief:
    known = Brief(
        f"20261125T00{number:02d}00Z-stall-0",
        "stall",
        "n1",
        1e9,
        None,
        False,
        "GPU 0 hangs",
        "",
        ("0",),
        ("team/job",),
        0,
    )
    return replace(known, **said)


def packed(number: int, **said: Any) -> bytes:
    return gzip.compress(as_json(Incident(brief(number, **said), "0.1.0", "Look.")), mtime=0)


def write(folder: Folder, number: int, tape: int = 0) -> None:
    folder.write(brief(number).id, packed(number), os.urandom(tape))


def box_on(path: Path, **settings: Any) -> BlackBox:
    """The black box of a daemon that has just started."""
    asked = IncidentSettings(folder=path, **settings)
    return BlackBox(cast(Node, Machine(Path("/nowhere"))), asked, code=False)


def test_a_daemon_that_starts_again_has_what_was_kept(tmp_path: Path) -> None:
    played = PlayedIncident("h200_hang", folder=tmp_path / "kept")
    played.play(1.0)
    (before,) = played.box.kept
    assert not before.brief.complete
    (after,) = box_on(tmp_path / "kept").kept
    assert after.tape == before.tape
    assert after.brief == replace(before.brief, complete=True)  # nobody adds to it now
    told = parse(gzip.decompress(after.packed))
    assert told.moments == parse(gzip.decompress(before.packed)).moments


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "var" / "kept"
    path.mkdir(parents=True, mode=0o777)
    write(Folder(path, 64 * KIB), 1, tape=10)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert (stat.S_IMODE(path.stat().st_mode), modes) == (0o700, {0o600})


def test_a_full_folder_loses_the_oldest_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 64 * KIB)
    for number in range(10):
        write(folder, number, tape=15 * KIB)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 64 * KIB
    assert folder.names() == [brief(number).id for number in (9, 8, 7, 6)]
    assert len(list(tmp_path.iterdir())) == 8


def test_what_does_not_fit_at_all_leaves_the_limit_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 64 * KIB)
    with pytest.raises(OSError, match=r"larger than incident\.folder-bytes"):
        write(folder, 1, tape=65 * KIB)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_it_writes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any of the calls that change the folder, the version before is whole."""
    folder = Folder(tmp_path, 64 * KIB)
    folder.write(brief(1).id, packed(1), b"tape one")

    class Killed(BaseException):
        """The daemon ends here."""

    for call in ("rename", "fsync", "open"):
        for many in (0, 1):
            left = [many]
            real = getattr(os, call)

            def dies(*given: Any, left: list[int] = left, real: Any = real, **named: Any) -> Any:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return real(*given, **named)

            with monkeypatch.context() as patched:
                patched.setattr(os, call, dies)
                with pytest.raises(Killed):
                    folder.write(brief(1).id, packed(1, title="GPU 0 hangs again"), b"tape two")
            again = Folder(tmp_path, 64 * KIB)
            assert again.read(brief(1).id).brief.title.startswith("GPU 0 hangs")
            assert again.tape(brief(1).id) in (b"tape one", b"tape two")
            assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_what_a_crash_or_somebody_left_costs_no_other_incident(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tape whose incident was not written any more, a damaged one, and no file."""
    write(Folder(tmp_path, 64 * KIB), 1, tape=10)
    (tmp_path / f"{brief(2).id}.jsonl.gz").write_bytes(b"its tape")
    (tmp_path / f"{brief(0).id}.json.gz").write_bytes(b"no gzip")
    os.mkfifo(tmp_path / f"{brief(0).id}-2.json.gz")
    main(["incidents", f"--folder={tmp_path}"])
    assert capfd.readouterr().out == f"{brief(1).id}  GPU 0 hangs (goes on)\n"
    main(["incident", f"--folder={tmp_path}"])
    assert capfd.readouterr().out.startswith("GPU 0 hangs\n")


def test_of_an_incident_that_a_crash_cut_short_the_end_is_not_known(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads the folder the next morning is not told that it goes on."""
    write(Folder(tmp_path, 64 * KIB), 1)
    main(["incidents", f"--folder={tmp_path}"])
    assert capfd.readouterr().out.endswith("(goes on)\n")
    (file,) = tmp_path.iterdir()
    os.utime(file, (1e9, 1e9))
    main(["incidents", f"--folder={tmp_path}"])
    assert capfd.readouterr().out.endswith("(its end is not known)\n")


def test_three_restarts_in_one_hang_are_one_incident(tmp_path: Path) -> None:
    kept = Folder(tmp_path / "kept", 64 * KIB)
    ids = set()
    for _ in range(4):
        box = hung_on(tmp_path / "kept")
        box.play(120)
        ids.add(box.incidents[0].brief.id)
    assert len(ids) == len(kept.names()) == 1
    (name,) = kept.names()
    assert kept.read(name).brief.kind == "stall"


def test_a_hang_after_a_daemon_was_off_is_another(tmp_path: Path) -> None:
    hung_on(tmp_path / "kept").play(120)
    for file in (tmp_path / "kept").iterdir():
        os.utime(file, (1e9, 1e9))
    hung_on(tmp_path / "kept").play(120)
    assert len(Folder(tmp_path / "kept").names()) == 2


def hung_on(folder: Path) -> Box:
    """Two ranks, of which one does not come, and a daemon that has just started."""
    first = Actor(0, {"blocked": 1.0}, processes=((10, 1.0), (11, 1.0)), trains=True)
    late = Actor(1, {"idle": 1.0}, processes=((20, 1.0), (21, 1.0)), trains=True)
    return Box(first, late, folder=folder)


def test_a_clock_that_was_ahead_does_not_make_the_newest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, 3000)
    write(folder, 50, tape=1000)  # of ten to one, as that clock said
    monkeypatch.setattr(time, "time", lambda: calendar.timegm((2026, 11, 25, 0, 10, 0)))
    write(folder, 5, tape=1000)
    write(folder, 6, tape=1000)
    assert folder.names() == [brief(6).id, brief(5).id]


def test_a_folder_that_cannot_be_written_to_or_does_not_answer_is_told_and_costs_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    ever = threading.Event()
    monkeypatch.setattr(black_box, "FOLDER_WAIT", 0.1)
    for mkdir, says in ((read_only, "Read-only"), (lambda *_, **__: ever.wait(), "not answer")):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "mkdir", mkdir)
            assert box_on(tmp_path / "gone").folder is None
        assert says in caplog.records[-1].getMessage()
    ever.set()


def test_a_disk_that_is_full_costs_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actor = Actor(0)
    box = Box(actor, folder=tmp_path / "kept")
    box.play(20)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_file, "write", full)
    actor.rates[xids.XIDS, ("31",)] = 0.0
    box.play(10)
    fail(actor)
    box.play(60)
    assert box.kinds == ["xid"]
    unwritten = [
        cast(float, s.value) for s in box.loop.samples() if "write_failures" in s.metric.name
    ]
    assert unwritten[0] >= 3
    assert caplog.text.count("No space left on device") == 1


@as_root
def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    os.chown(tmp_path / "kept", 65534, 65534)
    with pytest.raises(UsageError, match="it belongs to another user"):
        box_on(tmp_path / "kept")


def test_a_tape_for_which_there_was_no_space_is_written_once_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    first = Actor(0, {"blocked": 1.0}, processes=((10, 1.0), (11, 1.0)), trains=True)
    late = Actor(1, {"idle": 1.0}, processes=((20, 1.0), (21, 1.0)), trains=True)
    box = Box(first, late, folder=tmp_path / "kept")
    with monkeypatch.context() as patched:
        patched.setattr(whole_file, "write", full)
        box.play(330)
    box.play(600)
    (kept,) = box.box.kept
    assert kept.tape
    assert Folder(tmp_path / "kept").tape(kept.brief.id) == kept.tape


def test_incidents_that_cannot_be_read_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    write(Folder(tmp_path, 64 * KIB), 1)
    for number in (2, 3):
        (tmp_path / f"{brief(number).id}.json.gz").write_bytes(b"no gzip")
    main(["incidents", f"--folder={tmp_path}"])
    assert brief(1).id in capfd.readouterr().out
    assert f"2 of its incidents cannot be read, such as {brief(3).id}" in caplog.text


def test_what_is_not_ours_stays_and_is_not_read(tmp_path: Path) -> None:
    """Files of others, damaged ones, a link out of the folder, a pipe and a bomb."""
    folder = Folder(tmp_path, 64 * KIB)
    write(folder, 1, tape=10)
    (tmp_path / "README").write_text("mine")
    (tmp_path / "..-stall-0.json.gz").write_text("x")
    (tmp_path / f"{brief(2).id}.json.gz").write_bytes(b"no gzip")
    (tmp_path / f"{brief(3).id}.json.gz").write_bytes(gzip.compress(b'{"brief": 1}'))
    secret = tmp_path.parent / "secret"
    secret.write_bytes(packed(4))
    (tmp_path / f"{brief(4).id}.json.gz").symlink_to(secret)
    os.mkfifo(tmp_path / f"{brief(5).id}.json.gz")
    (tmp_path / f"{brief(6).id}.json.gz").write_bytes(gzip.compress(bytes(20 << 20)))
    (tmp_path / f"{brief(7).id}.json.gz").write_bytes(packed(7, id="../../etc/passwd"))
    assert [one.brief.id for one in box_on(tmp_path).kept] == [brief(1).id]
    assert (tmp_path / "README").read_text() == "mine"


def test_no_more_is_read_into_memory_than_may_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, 1 << 20)
    for number in range(20):
        write(folder, number, tape=20 * KIB)
    monkeypatch.setattr("gpunode.incidents.black_box.MAX_INCIDENT_BYTES", 64 * KIB)
    box = box_on(tmp_path)
    assert [bool(one.tape) for one in box.kept].count(True) == 3
    assert sum(one.size for one in box.kept) <= 64 * KIB
    assert box.kept[0].brief.id == brief(19).id


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="too long"):
        unpacked(gzip.compress(bytes(1 << 20)), 1000)


def test_the_commands_read_a_folder_without_a_daemon(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    PlayedIncident("h200_hang", folder=kept).play(1.0)
    main(["incidents", f"--folder={kept}"])
    listed = capfd.readouterr().out
    assert "-stall-0  GPU 0 hangs: it waits for GPU 1" in listed
    main(["incident", listed.split()[0], f"--folder={kept}"])
    told = capfd.readouterr().out
    assert "waited for: GPU 1 (rank 1, PID 2711), its process is stopped by a signal" in told
    assert "where: not known: no process was looked at" in told
    assert "do: Continue it: `kill -CONT 2711`." in told
    page, tape = tmp_path / "page.html", tmp_path / "tape.jsonl.gz"
    main(["incident", "latest", f"--folder={kept}", f"--html={page}", f"--tape={tape}"])
    assert "gpunode replay" in capfd.readouterr().out
    assert "GPU 0 hangs" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == stat.S_IMODE(tape.stat().st_mode) == 0o600
    main(["replay", str(tape), "--speed=0", "--print=metrics"])
    assert 'gpunode_gpu_waited_for{gpu="1",reason="stopped"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["incident", "x"], "x: no ID of an incident"),
        (["incident", "../../etc/passwd"], "no ID of an incident"),
        (["incident", "20261125T000000Z-stall-7"], "no such incident in this folder"),
        (["incident"], "no incident is kept"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, f"--folder={tmp_path}"])
    assert ended.value.code == 2
    assert said in capfd.readouterr().err


def test_an_id_that_no_daemon_gives_is_not_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    """A C1 control begins a sequence for the terminal, as ESC does."""
    listed = briefs().dump_json([brief(1, id="\x9b2J\u202e")])
    asked: list[str] = []

    def answer(path: str) -> bytes:
        asked.append(path)
        return listed if path.endswith("/incidents") else b"{}"

    with exporter(answer) as port, pytest.raises(SystemExit) as ended:
        main(["incident", "latest", f"--url=http://127.0.0.1:{port}"])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("gpunode: \ufffd2J\ufffd: no ID of an incident")
    assert asked == ["/api/v1/incidents"]


@pytest.mark.parametrize("arguments", [["incidents"], ["incident", brief(1).id]])
def test_json_says_the_same_and_nothing_that_a_terminal_obeys(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    known = brief(1, title="\x1b[31m\x9b2J\u202e é")

    def answer(path: str) -> bytes:
        if path.endswith("/incidents"):
            return briefs().dump_json([known])
        return as_json(Incident(known, "0.1.0", "Look."))

    with exporter(answer) as port:
        main([*arguments, "--json", f"--url=http://127.0.0.1:{port}"])
    said = capfd.readouterr().out
    assert said.replace("\n", "").isprintable()
    found = json.loads(said)
    assert (found[0] if arguments == ["incidents"] else found["brief"])["title"] == known.title


def test_a_folder_that_is_not_there_is_not_made_by_who_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["incidents", f"--folder={tmp_path / 'none'}"])
    assert "none: No such file or directory" in capfd.readouterr().err
    assert not (tmp_path / "none").exists()


def test_an_empty_name_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUNODE_INCIDENT__FOLDER", "")
    assert RunSettings(_cli_parse_args=[]).incident.folder is None
