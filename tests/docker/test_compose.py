"""The quick start: its files fit together, and the real programs run with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.boards import BOARDS
from tests.conftest import until
from tests.daemon import free_ports
from tests.needs import ROOT, need
from tests.prometheus.programs import program

DOCKER = ROOT / "docker"
FILES = (DOCKER / "compose.yaml", DOCKER / "compose.gpus.yaml")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILES[0].read_text())["services"]
PROMETHEUS = DOCKER / "compose/prometheus.yaml"


def mounts(service: str) -> dict[str, Path]:
    """What a service has of the checkout, by where it finds it."""
    pairs = (volume.split(":") for volume in SERVICES[service]["volumes"] if volume[0] == ".")
    return {inside: (DOCKER / outside).resolve() for outside, inside, _ in pairs}


def test_the_files_are_as_the_schema_of_compose_says() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*checker, *map(str, FILES)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_what_is_pulled_is_pinned_by_digest() -> None:
    pulled = [of["image"] for of in SERVICES.values() if "build" not in of]
    assert len(pulled) == 3
    for image in pulled:
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", image)


def test_it_says_which_versions_the_tests_run() -> None:
    """Those that the Makefile builds; Prometheus numbers its Go module 0.X for 3.X."""
    makefile = (ROOT / "Makefile").read_text()
    built = {
        name: re.findall(rf"github\.com/prometheus/{name} v(\S+) cmd/{name} ", makefile)
        for name in ("prometheus", "alertmanager")
    }
    ((minor, patch),) = (one.split(".")[1:] for one in built["prometheus"])
    prometheus = f"3.{int(minor) - 300}.{patch}"
    (alertmanager,) = built["alertmanager"]
    said = FILES[0].read_text().replace("\n# ", " ")
    assert f"with Prometheus {prometheus} and Alertmanager {alertmanager} on no" in said


def test_the_readme_has_the_command() -> None:
    assert (
        "\n    docker compose --file docker/compose.yaml up\n" in (ROOT / "README.md").read_text()
    )


def test_every_service_finds_its_files_and_the_others() -> None:
    for service in ("prometheus", "alertmanager", "grafana"):
        assert all(path.exists() for path in mounts(service).values())
    config = yaml.safe_load(PROMETHEUS.read_text())
    (scraped,), (alerting,) = config["scrape_configs"], config["alerting"]["alertmanagers"]
    provisioned = mounts("grafana")["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    asked = [
        *(target for one in scraped["static_configs"] for target in one["targets"]),
        *(target for one in alerting["static_configs"] for target in one["targets"]),
        source["url"].removeprefix("http://"),
    ]
    ports = {"node": 9816, "hanging": 9816, "prometheus": 9090, "alertmanager": 9093}
    assert sorted(asked) == sorted(f"{name}:{port}" for name, port in ports.items())
    (boards,) = yaml.safe_load((provisioned / "dashboards/gpunode.yaml").read_text())["providers"]
    folder = mounts("grafana")[boards["options"]["path"]]
    assert {path.stem for path in folder.glob("*.json")} == {board.uid for board in BOARDS}
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).exists()
    for path in folder.glob("*.json"):  # so that they find the data source without being told
        (first, *_) = json.loads(path.read_text())["templating"]["list"]
        assert (first["type"], first["query"]) == ("datasource", source["type"])


def ask(port: int, path: str) -> Any:
    """What a server answers; None while it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.mark.integration
def test_an_alert_goes_from_the_demo_to_alertmanager(tmp_path: Path) -> None:
    node, hanging, prometheus, alertmanager, peer = free_ports(5)
    ports = {
        "node:9816": node,
        "hanging:9816": hanging,
        "alertmanager:9093": alertmanager,
    }
    config = PROMETHEUS.read_text().replace("15s", "5s")
    for address, port in ports.items():
        config = config.replace(address, f"127.0.0.1:{port}")
    # Here the two nodes are one machine, and their ports tell them apart.
    config = config.replace('"(.+):.+"', '"(.+)"')
    (tmp_path / "prometheus.yaml").write_text(config)
    routes = mounts("alertmanager")["/etc/alertmanager/alertmanager.yml"]

    def gpunode(service: str, port: int = 0) -> list[str]:
        command = " ".join(SERVICES[service]["command"])
        command = command.replace(":9816", f"127.0.0.1:{port}")
        command = command.replace("/monitoring", f"{tmp_path}/monitoring")
        return [sys.executable, "-m", "gpunode", *command.split()]

    subprocess.run(gpunode("rules"), check=True)
    commands = {
        "node": gpunode("node", node),
        "hanging": gpunode("hanging", hanging),
        "alertmanager": [
            need("alertmanager"),
            f"--config.file={routes}",
            f"--storage.path={tmp_path / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{alertmanager}",
            f"--cluster.listen-address=127.0.0.1:{peer}",
        ],
        "prometheus": [
            need("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yaml'}",
            f"--storage.tsdb.path={tmp_path / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        ],
    }
    with ExitStack() as running:
        for name, command in commands.items():
            running.enter_context(program(command, tmp_path / f"{name}.log"))
        until(
            lambda: [
                alert
                for alert in ask(alertmanager, "/api/v2/alerts") or ()
                if alert["labels"]["alertname"] == "JobStalled"
                and alert["labels"]["severity"] == "page"
            ]
        )
        targets = ask(prometheus, "/api/v1/targets")["data"]["activeTargets"]
        assert sorted(target["health"] for target in targets) == ["up", "up"]
        groups = ask(prometheus, "/api/v1/rules")["data"]["groups"]
        unwell = [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]
        assert len(groups) > 10
        assert not unwell
