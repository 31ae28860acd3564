"""What generated programs have shown so far: windows with their truth, and verdicts."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.truth.launch import Placement
from tests.windows.recorded import WindowRecord, load, save


@dataclass(slots=True)
class ResultStore:
    """What was found so far; several threads add to it."""

    folder: Path
    gpu: str
    windows: list[WindowRecord] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.windows_file.exists():
            self.windows = list(load(self.windows_file))
        if self.verdicts_file.exists():
            with gzip.open(self.verdicts_file, "rt") as lines:
                self.verdicts = [json.loads(line) for line in lines]

    @property
    def windows_file(self) -> Path:
        return self.folder / f"windows-{self.gpu}.jsonl.gz"

    @property
    def verdicts_file(self) -> Path:
        return self.folder / f"verdicts-{self.gpu}.jsonl.gz"

    def add(self, windows: Sequence[WindowRecord], verdicts: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self.windows += windows
            self.verdicts += verdicts
            save(self.windows_file, self.windows)
            text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in self.verdicts)
            self.verdicts_file.write_bytes(gzip.compress(text.encode(), mtime=0))

    def fail(self, each: Placement, name: str, why: str) -> None:
        """Print why there is nothing of a program, with the end of what it said."""
        with self._lock:
            said = []
            for process in each.processes:
                with suppress(OSError):
                    errors = process.folder / f"errors.{process.rank}"
                    said += errors.read_text(errors="replace").splitlines()[-40:]
            self.failed.append(name)
            print(f"FAILED {name}: {why}", flush=True)
            with (self.folder / "errors.txt").open("a") as file:
                file.write("\n".join([f"== {name}: {why}", *said, ""]))
