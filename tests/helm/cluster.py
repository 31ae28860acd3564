"""A real Kubernetes control plane without kubelets: etcd, API server and controllers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import until
from tests.daemon import TIMEOUT, free_ports
from tests.needs import ROOT, need
from tests.prometheus.programs import program

TOKEN = "of-a-test-that-ends-soon"
CONTROLLERS = ("daemonset", "serviceaccount", "namespace", "garbage-collector")
CRDS = ROOT / ".monitoring" / "crds"
API_SERVER = os.environ.get("KUBE_APISERVER")
"""The program of another version, with the usual controllers; see `make chart-oldest`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running control plane."""

    environment: Mapping[str, str]

    def run(self, *command: str, given: Any = None) -> subprocess.CompletedProcess[str]:
        """What a program says, which finds the cluster; ``given`` is its standard input."""
        return subprocess.run(
            [need(command[0]), *command[1:]],
            env=self.environment,
            input=None if given is None else yaml.safe_dump_all(given),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        """What kubectl says. Raises ``AssertionError`` where it fails."""
        ran = self.run("kubectl", *arguments, given=given)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """Objects of the API."""
        return dict(json.loads(self.kubectl("get", "-o", "json", *arguments)))

    def version(self) -> tuple[int, int]:
        """The major and the minor version of Kubernetes."""
        named = json.loads(self.kubectl("get", "--raw=/version"))["gitVersion"]
        major, minor, *_ = named.removeprefix("v").split(".")
        return int(major), int(minor)

    def is_ready(self) -> bool:
        """Whether the API server answers."""
        return self.run("kubectl", "get", "--raw=/readyz").stdout == "ok"

    def namespace(self, name: str, level: str) -> str:
        """A namespace that enforces a level of Pod Security."""
        label = {"pod-security.kubernetes.io/enforce": level}
        metadata = {"name": name, "labels": label}
        self.kubectl(
            "create", "-f-", given=[{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]
        )
        return name


@contextmanager
def control_plane(folder: Path) -> Iterator[Cluster]:
    """Run a control plane for as long as the block lasts."""
    etcd, peer, api = free_ports(3)
    key, config = folder / "service-accounts.key", folder / "kubeconfig"
    make_key = [need("openssl"), "genrsa", "-out", str(key), "2048"]
    subprocess.run(make_key, capture_output=True, check=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    access = {
        "clusters": {"server": f"https://127.0.0.1:{api}", "insecure-skip-tls-verify": True},
        "users": {"token": TOKEN},
        "contexts": {"cluster": "test", "user": "test"},
    }
    parts = {part: [{"name": "test", part.removesuffix("s"): of}] for part, of in access.items()}
    config.write_text(yaml.safe_dump({"kind": "Config", "current-context": "test", **parts}))
    commands = {
        "etcd": {
            "data-dir": folder / "etcd",
            "listen-client-urls": f"http://127.0.0.1:{etcd}",
            "advertise-client-urls": f"http://127.0.0.1:{etcd}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
            "unsafe-no-fsync": "true",
        },
        "kube-apiserver": {
            "etcd-servers": f"http://127.0.0.1:{etcd}",
            "bind-address": "127.0.0.1",
            "secure-port": api,
            "cert-dir": folder / "certificates",
            "service-cluster-ip-range": "10.0.0.0/24",
            "token-auth-file": folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "allow-privileged": "true",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
        },
        "kube-controller-manager": {
            "kubeconfig": config,
            "controllers": ",".join(f"{name}-controller" for name in CONTROLLERS),
            "leader-elect": "false",
            "service-account-private-key-file": key,
            "secure-port": "0",
        },
    }
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "KUBECONFIG": str(config)}
    cluster = Cluster(environment)
    with ExitStack() as running:
        for name, options in commands.items():
            written = [f"--{option}={value}" for option, value in options.items()]
            given = API_SERVER if name == "kube-apiserver" else None
            running.enter_context(program([given or need(name), *written], folder / f"{name}.log"))
            if name == "kube-apiserver":
                until(cluster.is_ready)
        cluster.kubectl("apply", "--server-side", f"--filename={CRDS}")
        yield cluster
