"""What shells complete of the commands, in the shells themselves."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpunode.cli.commands import COMMANDS
from gpunode.cli.main import main
from tests.needs import need


def script(shell: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(["completion", shell])
    return out.getvalue()


def in_bash(*words: str) -> set[str]:
    """What bash offers for the last of the words; it takes = for a word of its own."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _gpunode; printf '%s\\n' "
    command = ["bash", "-c", f'{script("bash")}\n{asked} "${{COMPREPLY[@]}}"']
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def in_fish(line: str, folder: Path) -> set[str]:
    (folder / "gpunode.fish").write_text(script("fish"))
    asked = f"source {folder}/gpunode.fish; complete --do-complete '{line}'"
    command = [need("fish"), "--no-config", "-c", asked]
    environment: Mapping[str, str] = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return {one.split("\t")[0] for one in ran.stdout.splitlines()}


STORIES = {"storage", "hang", "p2p", "throttled", "shm"}


def test_bash_completes_commands_options_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "billing.yaml").touch()
    assert in_bash("gpunode", "") == COMMANDS.keys()
    assert in_bash("gpunode", "re") == {"record", "replay", "report"}
    assert in_bash("gpunode", "demo", "") == STORIES
    assert in_bash("gpunode", "report", "--fo") == {"--format"}
    assert in_bash("gpunode", "report", "--format", "=") == {"html", "json", "csv"}
    assert in_bash("gpunode", "report", "--format", "=", "h") == {"html"}
    assert in_bash("gpunode", "report", "--format", "h") == {"html"}
    assert in_bash("gpunode", "report", "--billing-file", "=", "b") == {"billing.yaml"}
    assert in_bash("gpunode", "demo", "--once", "h") == {"hang"}, "a flag takes no value"
    assert in_bash("gpunode", "--gpu.i") == {"--gpu.interval"}, "without a command it is run"
    assert in_bash("gpunode", "completion", "") == {"bash", "zsh", "fish"}
    assert in_bash("gpunode", "--interv") == set()


def test_fish_completes_commands_options_and_values(tmp_path: Path) -> None:
    assert in_fish("gpunode re", tmp_path) == {"record", "replay", "report"}
    assert in_fish("gpunode demo ", tmp_path) >= STORIES
    assert in_fish("gpunode report --format ", tmp_path) == {"html", "json", "csv"}
    assert "--billing-file" in in_fish("gpunode report --bill", tmp_path)


def test_zsh_takes_the_completion_of_bash(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("zsh"))
    asked = f"autoload -U compinit && compinit -D; source {tmp_path}/script; print $_comps[gpunode]"
    command = [need("zsh"), "-f", "-c", asked]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (ran.stdout, ran.stderr) == ("_bash_complete -o filenames -F _gpunode\n", "")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("topp", "did you mean top?"),
        ("demo hanh", "did you mean hang?"),
        ("replay h200_han", "did you mean h200_hang or "),
        ("top --intervall=3", "did you mean --interval?"),
        ("report --formt html", "did you mean --format or --from?"),
        ("run --zzzz", "`gpunode run --help` lists its own"),
        ("top --price=3", "these commands have it: report, why"),
    ],
)
def test_what_is_mistyped_names_what_may_be_meant(
    given: str, meant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given.split())
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert meant in line
