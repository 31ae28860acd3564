"""A callback for the Hugging Face Trainer: ``Trainer(…, callbacks=[GpunodeCallback()])``."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from gpunode.client import Session, _session

log = logging.getLogger(__name__)


class GpunodeCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps, evaluations, checkpoints, the loss that the Trainer logs and its tokens.

    The Trainer counts tokens with ``TrainingArguments(include_num_input_tokens_seen=True)``: those
    of all processes, and after a checkpoint those before it, too.
    """

    def __init__(self, session: Session = _session) -> None:
        self._session = session
        self._tokens = 0.0
        self._training = False

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self._training = True
        self._tokens = _seen(state)
        if getattr(args, "include_num_input_tokens_seen", False) in (False, "no"):
            log.warning(
                "gpunode: no tokens are reported: set include_num_input_tokens_seen=True in "
                "TrainingArguments"
            )

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._session.mark("step")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seen = _seen(state)
        tokens = max(0.0, seen - self._tokens) / (getattr(args, "world_size", 1) or 1)
        self._tokens = seen
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        number = getattr(state, "global_step", None)
        self._session.step(tokens=tokens, samples=batch, number=number)
        if control.should_evaluate:
            self._session.mark("evaluation")
        elif control.should_save:
            self._session.mark("checkpoint")
        else:
            self._session.mark("data")

    def on_evaluate(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        if self._training:  # otherwise the user called evaluate()
            self._session.mark("checkpoint" if control.should_save else "data")

    def on_save(self, *_: Any, **__: Any) -> None:
        self._session.mark("data")

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        loss = (logs or {}).get("loss")
        if isinstance(loss, float):
            self._session.loss(loss)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._training = False
        self._session.mark("other")
        self._session.flush()


def _seen(state: Any) -> float:
    return float(getattr(state, "num_input_tokens_seen", 0) or 0)
