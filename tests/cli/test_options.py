"""Every command has the options that it reads, and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.cli.commands import COMMANDS
from gpunode.cli.loader import settings_of
from gpunode.cli.main import main
from gpunode.config.fields import is_shared, leaves, option
from gpunode.incidents.folder import Folder
from gpunode.recorded import INCIDENTS
from tests.incidents.test_folder import brief, packed

HERE = "--web.listen-address=127.0.0.1:0"
NOBODY = "127.0.0.1:9"
"""Where no daemon answers."""

USES: dict[str, list[list[str]]] = {
    "run": [[HERE, "--client.socket="]],
    "record": [["{folder}/tape.jsonl.gz", "--duration=0.1", "--client.socket="]],
    "replay": [["h200_hang", "--speed=1000", HERE]],
    "demo": [["{folder}/tapes", "--once", "--speed=1000", HERE]],
    "top": [
        [f"--web.listen-address={NOBODY}"],
        [f"--url=https://{NOBODY}", "--username=ann", "--password-file={folder}/password"],
    ],
    "stacks": [
        ["--gpu=0"],
        ["--pid=1"],
        [
            *("--gpu=0", f"--url=https://{NOBODY}", "--username=ann"),
            "--password-file={folder}/password",
        ],
    ],
    "incidents": [
        [f"--web.listen-address={NOBODY}"],
        [f"--url=https://{NOBODY}", "--username=ann", "--password-file={folder}/password"],
        ["--folder={folder}"],
    ],
    "incident": [
        [f"--web.listen-address={NOBODY}"],
        [f"--url=https://{NOBODY}", "--username=ann", "--password-file={folder}/password"],
        ["latest", "--folder={folder}/kept", "--html={folder}/x.html", "--tape={folder}/x.gz"],
        ["--job=llm", f"--prometheus.url=http://{NOBODY}"],
    ],
    "mcp": [[f"--node=http://{NOBODY}", "--username=ann", "--password-file={folder}/password"]],
    "audit": [[]],
    "doctor": [[f"--web.listen-address={NOBODY}"]],
    "calibrate": [["--path.rootfs={folder}"]],
    "nccl-bench": [
        ["--path.rootfs={folder}"],
        ["--hosts=a,b"],
        ["--result={folder}/result", "--picture={folder}/x.svg"],
    ],
    "report": [
        ["--output={folder}/report.html"],
        ["--out-folder={folder}", "--billing-file={folder}/changes.yaml"],
    ],
    "why": [["llm", "--output={folder}/why.txt"]],
    "advise": [
        [f"--web.listen-address={NOBODY}"],
        [f"--url=https://{NOBODY}", "--username=ann", "--password-file={folder}/password"],
        ["--file={folder}/metrics"],
        ["--fleet", f"--prometheus.url=http://{NOBODY}"],
    ],
    "completion": [["bash"]],
    "rules": [
        ["--into={folder}"],
        [
            *("explain", "JobStalled", "workload=llm", "--at=2026-08-31", "--rules={folder}/rules"),
            f"--prometheus.url=http://{NOBODY}",
        ],
    ],
}
"""By command, with which options it reads everything that it can."""

FABRIC = json.dumps(
    {
        "fabric": {
            "hosts": ["a", "b"],
            "gpus": 2,
            "model": "NVIDIA H200",
            "time": 1.8e9,
            "collectives": {},
            "exchanges": [[0, 1, 0, 4.8e10], [1, 0, 0, 4.8e10]],
            "expected": {},
        }
    }
)


def options(command: str) -> set[str]:
    """The options and arguments of a command."""
    return {option(path, field) for path, field in leaves(settings_of(command).model_fields)}


def of_others(command: str) -> set[str]:
    """The options that only other commands have."""
    everything = set().union(*map(options, COMMANDS))
    return {one for one in everything - options(command) if one.startswith("--")}


def test_a_command_reads_each_setting_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes/healthy.jsonl.gz").symlink_to(INCIDENTS / "healthy.jsonl.gz")
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "changes.yaml").touch()
    (tmp_path / "metrics").write_text("gpunode_gpu_info 1\n")
    (tmp_path / "result").write_text(FABRIC)
    Folder(tmp_path / "kept", 1 << 20).write(brief(1).id, packed(1), b"tape")
    uses = {
        command: [[one.format(folder=tmp_path) for one in given] for given in USES[command]]
        for command in COMMANDS
    }
    (tmp_path / "uses.json").write_text(json.dumps(uses))
    program = [sys.executable, "-m", "tests.cli.reads", str(tmp_path / "uses.json")]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {
        command: sorted(".".join(path) for path, _ in leaves(settings_of(command).model_fields))
        for command in COMMANDS
    }, ran.stderr


def test_the_help_of_a_command_lists_its_options_alone(capfd: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        listed = set(re.findall(r"^  (--[\w.-]+|[A-Z]+\b)", capfd.readouterr().out, re.M))
        assert listed == options(command), command


def test_an_option_of_another_command_is_refused_and_told_whose_it_is(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number, command in enumerate(COMMANDS):
        others = sorted(of_others(command))
        given = others[7 * number % len(others)]
        with pytest.raises(SystemExit) as ended:
            main([command, f"{given}=1"])
        assert ended.value.code == 2
        said = capfd.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert given in said.err
        having = [other for other in COMMANDS if given in options(other)]
        assert said.err.rstrip().endswith(", ".join(having)), command


def test_no_setting_of_a_file_has_the_name_of_a_section() -> None:
    """A file serves all commands, and would mean one thing for some and another for others."""
    shared = {
        path
        for name in COMMANDS
        for path, field in leaves(settings_of(name).model_fields)
        if is_shared(field)
    }
    sections = {path[:length] for path in shared for length in range(1, len(path))}
    assert not shared & sections
