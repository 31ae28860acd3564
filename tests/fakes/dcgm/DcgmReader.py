"""What stands for DcgmReader: the calls that gpunode makes, with DCGM's names."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dcgm_structs


@dataclass
class Value:
    value: float
    isBlank: bool  # noqa: N815
    ts: int = 0


class DcgmReader:
    def __init__(
        self,
        hostname: str,
        fieldIds: list[int],  # noqa: N803
        updateFrequency: int,  # noqa: N803
        maxKeepAge: float,  # noqa: N803
        fieldGroupName: str,  # noqa: N803
    ) -> None:
        assert updateFrequency >= 100_000
        assert maxKeepAge > 0
        assert fieldGroupName
        self.hostname = hostname
        self.fields = fieldIds
        self.m_gpuIdToUUId: dict[int, str] = {}

    def __enter__(self) -> DcgmReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def Init(self) -> None:  # noqa: N802
        self.m_gpuIdToUUId = {int(k): v for k, v in self._script()["uuids"].items()}

    def GetAllGpuValuesAsFieldIdDictSinceLastCall(self) -> dict[int, dict[int, list[Value]]]:  # noqa: N802
        script = self._script()
        values = {int(field): value for field, value in script["values"].items()}
        blank = script.get("blank", False)
        return {
            gpu: {f: [Value(values[f], blank)] for f in self.fields if f in values}
            for gpu in self.m_gpuIdToUUId
        }

    def _script(self) -> Any:
        script = json.loads(Path(os.environ["FAKE_DCGM"]).read_text())
        if script.get("error"):
            raise dcgm_structs.DCGMError(script["error"])
        return script
