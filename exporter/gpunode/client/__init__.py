"""The client for training code: reports training progress to the gpunode daemon on this node.

    from gpunode import client

    for batch in client.watch(loader):
        loss = train(batch)
        client.step(tokens=batch.numel(), loss=loss_as_float_or_nothing)
    with client.phase("checkpoint"):
        save()

Nothing here blocks training or raises into it: calls put a few numbers into a bounded queue, and a
thread sends them once a second, or drops them if no daemon runs. An argument that a call does not
have is left out, with a warning in the log. Standard library only.
"""

from gpunode.client.session import Session, Watched

_session = Session()

step = _session.step
watch = _session.watch
phase = _session.phase
request = _session.request
configure = _session.configure
mark = _session.mark
flush = _session.flush
follow = _session.follow
profile = _session.profile
status = _session.status

__all__ = [
    "Session",
    "Watched",
    "configure",
    "flush",
    "follow",
    "mark",
    "phase",
    "profile",
    "request",
    "status",
    "step",
    "watch",
]
