"""A callback for PyTorch Lightning: ``Trainer(callbacks=[GpunodeCallback()])``."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from gpunode.client import Session, _session


class GpunodeCallback(Callback):  # type: ignore[misc]
    """Reports steps, waits for data, validations and checkpoints."""

    def __init__(self, session: Session = _session) -> None:
        self._session = session
        self._training = False

    def on_train_start(self, *_: Any) -> None:
        self._training = True
        self._session.mark("data")

    def on_train_batch_start(self, *_: Any) -> None:
        self._session.mark("step")

    def on_train_batch_end(self, *_: Any) -> None:
        self._session.step()
        self._session.mark("data")

    def on_validation_start(self, *_: Any) -> None:
        self._session.mark("evaluation")

    def on_validation_end(self, *_: Any) -> None:
        self._session.mark("data" if self._training else "other")

    def on_save_checkpoint(self, *_: Any) -> None:
        self._session.mark("checkpoint")

    def on_train_end(self, *_: Any) -> None:
        self._training = False
        self._session.mark("other")
        self._session.flush()
