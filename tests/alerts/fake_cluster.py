"""A cluster whose names resemble each other, and programs that answer about it.

Run as ``fake_cluster.py PROGRAM ARGUMENTS``, it notes the call in the file ``$CALLS`` and answers
as ``kubectl`` does about pods; other programs say nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Pod(NamedTuple):
    """A pod with a GPU, and the job that the rules see in it."""

    name: str
    job: str
    kind: str = "PyTorchJob"
    owner: str = ""
    deployment: str = ""
    replica: str = ""
    namespace: str = "research"
    cluster: str = "eu-1"
    node: str = "n-1"
    slurm: str = ""


def _replica(deployment: str, replica: str, job: str = "", **of: str) -> Pod:
    owner = f"{deployment}-{replica.partition('-')[0]}"
    return Pod(
        f"{deployment}-{replica}",
        job or deployment,
        "ReplicaSet",
        owner,
        deployment,
        replica,
        **of,
    )


CLUSTER = (
    Pod("llama-master-0", "llama", owner="llama"),
    Pod("llama-worker-0", "llama", owner="llama", node="n-2"),
    Pod("llama-0-bc5df", "llama", kind="Job", owner="llama", node="n-2"),
    Pod("llama-70b-worker-0", "llama-70b", owner="llama-70b"),
    Pod("llama2-eval-0", "llama2-eval", kind="StatefulSet", owner="llama2-eval"),
    Pod("llamas-worker-0", "llamas", owner="llamas"),
    Pod("my-llama-0", "my-llama", kind="StatefulSet", owner="my-llama"),
    Pod("llama.b-worker-0", "llama.b", owner="llama.b"),
    Pod("llama-worker-7", "llama", owner="llama", namespace="team"),
    Pod("llama-worker-8", "llama", owner="llama", cluster="us-1"),
    _replica("llama", "7c9f5d6b4-x2lqz", node="n-10"),
    _replica("llama-eval", "7c9f5d6b4-x2lqz", node="n-10"),
    _replica("chat", "7c9f5d6b4-x2lqz"),
    _replica("chat", "7c9f5d6b4-b8wqd", node="n-2"),
    _replica("chat-eval", "7c9f5d6b4-x2lqz"),
    _replica("chatbot", "7c9f5d6b4-x2lqz"),
    _replica("chat", "5d8c7b6f9-z9kwp", namespace="team", node="n-10"),
    Pod("slurm-worker-0", "slurm-7", "StatefulSet", "slurm-worker", namespace="slurm", slurm="7"),
)

HERE = [pod for pod in CLUSTER if pod.cluster == "eu-1"]
"""What this cluster's API server knows."""

COLUMNS: dict[str, Callable[[Pod], str]] = {
    ".metadata.name": lambda pod: pod.name,
    ".metadata.ownerReferences[*].kind": lambda pod: pod.kind or "<none>",
    ".metadata.ownerReferences[*].name": lambda pod: pod.owner or "<none>",
    ".spec.nodeName": lambda pod: pod.node,
}


def kubectl(arguments: Sequence[str]) -> str:
    """What kubectl prints about pods, the ReplicaSets that own some, and endpoints."""
    words = list(arguments)
    options = {}
    for option in ("-n", "-o", "--field-selector", "-L"):
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    names = [word for word in words if not word.startswith("-")][2:]
    if not words or words[0] != "get":
        return ""
    pods = [pod for pod in HERE if "-A" in words or pod.namespace == options.get("-n", "default")]
    if words[1] in ("pod", "pods"):
        node = options.get("--field-selector", "").removeprefix("spec.nodeName=")
        chosen = [
            pod
            for pod in pods
            if (not names or pod.name in names) and (not node or pod.node == node)
        ]
        # Everything of a node is to be seen before it is drained; it tells no job's pods apart.
        return "" if node else _printed(chosen, options.get("-o", ""), "--no-headers" in words)
    if words[1] == "replicaset":
        return "".join(f"{pod.deployment}\n" for pod in pods if pod.owner in names)
    if words[1] == "endpointslices":
        return json.dumps(
            {
                "items": [
                    {
                        "metadata": {"labels": {"kubernetes.io/service-name": pod.deployment}},
                        "endpoints": [
                            {"targetRef": {"name": pod.name}, "conditions": {"ready": True}}
                        ],
                    }
                    for pod in pods
                    if pod.deployment
                ]
            }
        )
    return ""


def _printed(pods: Sequence[Pod], output: str, bare: bool) -> str:
    if output == "name":
        return "".join(f"pod/{pod.name}\n" for pod in pods)
    if output.startswith("jsonpath"):
        return "".join(pod.node for pod in pods)
    if not output.startswith("custom-columns="):
        return "".join(f"{pod.name} 1/1 Running {pod.node}\n" for pod in pods)
    columns = [part.partition(":") for part in output.removeprefix("custom-columns=").split(",")]
    rows = [] if bare else [" ".join(title for title, _, _ in columns)]
    rows += [" ".join(COLUMNS[path](pod) for _, _, path in columns) for pod in pods]
    return "".join(f"{row}\n" for row in rows)


def main(program: str, *arguments: str) -> None:
    """Note the call, and answer."""
    with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
        calls.write(" ".join([program, *arguments]).replace("\n", " ") + "\n")
    if program == "kubectl":
        sys.stdout.write(kubectl(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
