"""``gpunode calibrate``: measures what kernels reach on a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from rich.table import Table

from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.daemon_files import keep, make_folder
from gpunode.cli.settings.calibrate import CalibrateSettings
from gpunode.cli.this_node import WAKE_TIMEOUT, local_node, whole_gpus
from gpunode.driver.driver import Identity
from gpunode.gpu.calibration import format_ceilings, implausible, read_ceilings
from gpunode.gpu.models import Ceilings, calibration_of
from gpunode.gpu.probe import ProbeError, measured_ceilings, probe
from gpunode.mistake import UsageError


def calibrate(settings: CalibrateSettings) -> None:
    """Measure what kernels reach on a GPU, print it, and keep it for the daemon."""
    if not settings.gpu.calibration_file:
        raise UsageError("gpu.calibration-file: is empty, so that there is nowhere to keep it")
    path = Path(f"{settings.path.rootfs}/{settings.gpu.calibration_file}")
    try:
        before = _calibrated(path)
        make_folder(path.parent)
        with TemporaryFile(dir=path.parent):  # or the minute of measuring would be in vain
            pass
        gpus, why = whole_gpus(local_node(settings.path, settings.dcgm, WAKE_TIMEOUT))
        if settings.index >= len(gpus):
            raise ProbeError(why or f"there is no GPU {settings.index}")
        gpu = gpus.pop(settings.index)
        if not settings.json_output:
            print(f"GPU {gpu.identity.index}: measuring for about a minute.", file=sys.stderr)
        ceilings = measured_ceilings(gpu, probe(gpu, gpus))
        if complaint := implausible(ceilings):
            raise ProbeError(f"{complaint}: something disturbed the measurement, so it is not kept")
        keep(path, format_ceilings({**before, gpu.identity.name: ceilings}))
    except (ProbeError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    with streams.printing():
        if settings.json_output:
            print(json.dumps(asdict(ceilings), indent=2))
        else:
            PipedConsole().print(calibration_table(gpu.identity, ceilings))


def _calibrated(path: Path) -> dict[str, Ceilings]:
    """What was kept before. Raises ``OSError``, and ``ValueError`` with the file in it."""
    try:
        return read_ceilings(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def calibration_table(who: Identity, measured: Ceilings) -> Table:
    """What was measured on a GPU, beside what is assumed of its model without."""
    whose = calibration_of(who)
    assumed = asdict(whose.ceilings)
    shown = Table(title=who.name, caption="read by the daemon when it starts")
    shown.add_column("ceiling")
    shown.add_column("measured", justify="right")
    shown.add_column(f"of {whose.measured_on}", justify="right")
    for name, value in asdict(measured).items():
        if value != assumed[name]:
            shown.add_row(name, f"{value:.3g}", f"{assumed[name]:.3g}")
    return shown
