"""``gpunode rules``: writes the rules for Prometheus, or explains one of their alerts."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from gpunode.cli import streams
from gpunode.cli.extras import needing
from gpunode.cli.settings.rules import RulesSettings
from gpunode.explain.rule_files import THRESHOLDS, rules_of, shipped, thresholds
from gpunode.mistake import UsageError

ROUTES = "alertmanager.yaml"


def write_or_explain(settings: RulesSettings) -> None:
    """Write the rules into a folder, or say what stands behind an alert."""
    words = settings.explain
    if bool(words) == bool(settings.into):
        raise UsageError(
            "say either --into=FOLDER, to write the rules, or explain ALERT LABEL=VALUE…"
        )
    if settings.into:
        write(settings.into)
        return
    if words[0] != "explain" or len(words) < 2:
        raise UsageError(f"{' '.join(words)}: say explain ALERT LABEL=VALUE…")
    with needing("report", "rules explain"):
        from gpunode.cli import explained
    explained.write(settings, words[1], words[2:])


def write(into: Path) -> None:
    """Write the files of rules, and the example for Alertmanager beside their folder."""
    said = []
    folder = into / "rules"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in shipped():
            path = folder / file.name
            text = file.read_text(encoding="utf-8")
            if file.name == THRESHOLDS and path.exists():
                said.append(_kept_note(path, text))
            else:
                path.write_text(text, encoding="utf-8")
        routes = (files("gpunode") / ROUTES).read_text(encoding="utf-8")
        (into / ROUTES).write_text(routes, encoding="utf-8")
        ours = {file.name for file in shipped()}
        others = sorted(path.name for path in folder.glob("*.y*ml") if path.name not in ours)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from error
    written = len(ours) - len(said)
    if others:
        said.append(
            f"{folder}: {', '.join(others)}: not of this version; remove what an older one wrote\n"
        )
    with streams.printing():
        sys.stdout.write(
            f"{into}: wrote {written} rule files to rules/, and an example of routes, {ROUTES}\n"
            f"{''.join(said)}"
        )


def _kept_note(path: Path, ours: str) -> str:
    """What is said of a site's own thresholds, which are kept."""
    try:
        own = set(thresholds(list(rules_of(path.read_text(encoding="utf-8"), str(path)))))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    lacking = [name for name in thresholds(list(rules_of(ours, path.name))) if name not in own]
    if not lacking:
        return f"{path}: kept as it was\n"
    return (
        f"{path}: kept as it was; it lacks {', '.join(lacking)}, so alerts that read them are "
        "silent: add them\n"
    )
