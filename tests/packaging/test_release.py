"""A release: what it is refused for, and that all of it is the same each time that it is made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from helm import release
from tests.helm.cluster import control_plane
from tests.helm.test_chart import daemon_of, documents, the
from tests.needs import ROOT, need
from tests.packaging import twice
from tests.packaging.twice import DIGEST, VERSION

NOT_YET = "\n<!-- until the first release -->\nNothing is published.\n<!-- end -->\n\n"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


@pytest.fixture(scope="session")
def tree(clone: Path) -> release.Tree:
    return release.tree(clone, f"v{VERSION}", clone.parent / "tree")


# What a release is refused for


def test_a_tag_with_which_every_file_agrees_is_a_release(clone: Path) -> None:
    assert release.check(clone, f"v{VERSION}") == VERSION


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        (release.PROGRAM, f'"{VERSION}"', '"9.8.6"', "__init__.py: 9.8.6"),
        (release.CHART, f"\nversion: {VERSION}", "\nversion: 1.0.0", "version in helm/gpunode"),
        (release.CHART, f"appVersion: {VERSION}", "appVersion: 1.0.0", "appVersion in helm"),
        (release.CHANGELOG, f"## [{VERSION}] - ", "## [1.0.0] - ", "CHANGELOG.md: 1.0.0"),
        (
            release.CHANGELOG,
            f"## [{VERSION}] - ",
            f"## [{VERSION}] - 2026-99-99\n",
            "2026-99-99 is",
        ),
        (release.CHANGELOG, "## [Unreleased]\n", "## [Unreleased]\n\n- New.\n", "Unreleased"),
        (release.CHANGELOG, "## [Unreleased]\n", "## Unreleased\n\n- New.\n", "no line ## [Unr"),
        (
            release.CHANGELOG,
            "\n### Added\n",
            "\n## [1.0.0] - 2029-01-02\n",
            f"nothing of {VERSION}",
        ),
        (release.README_OF_CHART, f":{VERSION} ", ":1.0.0 ", "image in helm/gpunode/README.md: 1"),
        (release.README_OF_CHART, "\n## Profiles\n", NOT_YET, "README.md: it says that there is"),
    ],
)
def test_a_tag_is_refused_where_a_file_does_not_agree(
    path: str, before: str, after: str, said: str, clone: Path, tmp_path: Path
) -> None:
    for name in (release.PROGRAM, release.CHART, release.CHANGELOG, release.README_OF_CHART):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (clone / name).read_text()
        (tmp_path / name).write_text(text.replace(before, after, 1) if name == path else text)
    with pytest.raises(release.Refused, match=re.escape(said)):
        release.check(tmp_path, f"v{VERSION}")


@pytest.mark.parametrize("tag", ["9.8.7", "v9.8", "v9.8.7-rc1", "v9.8.7.1", "latest"])
def test_a_tag_of_another_form_is_refused(
    tag: str, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    with pytest.raises(SystemExit) as ended:
        release.main(["check", tag])
    assert ended.value.code == 1
    assert f"release: {tag}" in capsys.readouterr().err


def test_a_version_that_the_changelog_has_is_not_prepared_again(clone: Path) -> None:
    with pytest.raises(release.Refused, match="already"):
        release.prepare(clone, VERSION, "2030-01-02")


@pytest.mark.parametrize("version", ["9.8", "09.8.8", "9.8.8-rc1", "v9.8.8"])
def test_a_version_of_another_form_is_not_prepared(version: str, clone: Path) -> None:
    with pytest.raises(release.Refused, match="three numbers"):
        release.prepare(clone, version, "2030-01-02")


def test_the_notes_are_what_the_changelog_says(clone: Path) -> None:
    said = release.notes(clone, VERSION)
    assert said.startswith("### Added\n")
    assert "\n## " not in said


def test_the_notes_are_published_with_what_ran_with_which_version(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    release.main(["notes", f"v{VERSION}"])
    published = capsys.readouterr().out
    assert published.startswith(release.notes(clone, VERSION))
    assert "\n| API server of Kubernetes" in published
    table = published.partition("### How this was tested\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", table)
    assert len(links) >= 3
    for link in links:
        page = link.removeprefix(f"{release.REPOSITORY}/blob/v{VERSION}/").partition("#")[0]
        assert (clone / page).exists(), link


# What it consists of


def test_links_lead_to_the_files_of_the_same_version(tree: release.Tree) -> None:
    for part in ("exporter", "helm", "alerts", "dashboards"):
        for path in (tree.root / part).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml", ".json", ".html"):
                text = path.read_text()
                assert f"{release.REPOSITORY}/blob/main/" not in text, path
                assert f"{release.REPOSITORY}/tree/main/" not in text, path
    shipped = (tree.root / "exporter/gpunode/rules/jobs.yaml").read_text()
    assert f"{release.REPOSITORY}/blob/v{VERSION}/alerts/runbooks" in shipped


def test_no_document_of_a_release_says_that_there_is_none(tree: release.Tree) -> None:
    pages = [tree.root / "README.md", *tree.root.glob("docs/*.md"), *tree.root.glob("helm/**/*.md")]
    for page in pages:
        text = page.read_text().lower()
        assert "first release" not in text.replace("\n", " "), page
        assert "nothing is published" not in text, page


@pytest.fixture(scope="session")
def python(tree: release.Tree, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("python")
    release.python(tree, folder)
    return sorted(folder.iterdir())


def test_the_page_on_pypi_needs_no_repository_around_it(
    tree: release.Tree, python: list[Path]
) -> None:
    _, sdist = python
    with tarfile.open(sdist) as archive:
        about = archive.extractfile(f"gpunode-{VERSION}/PKG-INFO")
        assert about
        page = about.read().decode()
        names = {name.partition("/")[2] for name in archive.getnames()}
    links = re.findall(r"\]\((?!#)([^)]+)\)", page)
    assert len(links) > 30
    for link in links:
        assert link.startswith("https://"), link
        if found := re.match(rf"{release.REPOSITORY}/blob/v{VERSION}/([^#]+)", link):
            assert (tree.root / found[1]).exists(), link
    assert f"gpunode/v{VERSION}/docs/page/hang.png" in page
    for kind in ("Homepage", "Documentation", "Source", "Issues", "Changelog"):
        assert f"\nProject-URL: {kind}, https://" in page
    for kind, path in {"Documentation": "README.md#read-on", "Changelog": "CHANGELOG.md"}.items():
        assert f"\nProject-URL: {kind}, {release.REPOSITORY}/blob/v{VERSION}/{path}\n" in page
    top = {name for name in names if not name.startswith("exporter/")}
    wanted = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert top == wanted


def test_pypi_would_take_both(python: list[Path]) -> None:
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, python)]
    checked = subprocess.run(twine, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


@pytest.mark.integration
@pytest.mark.parametrize(
    ("given", "image"),
    [
        ("enabled=true", f"ghcr.io/gpunode/gpunode@{DIGEST}"),
        ("image.repository=r.io/g", f"r.io/g@{DIGEST}"),
        ("image.repository=r.io/g,image.tag=mine", "r.io/g:mine"),
        (
            f"image.tag=mine,image.digest=sha256:{'6' * 64}",
            f"ghcr.io/gpunode/gpunode@sha256:{'6' * 64}",
        ),
    ],
)
def test_a_site_names_an_image_of_its_own_over_that_of_the_release(
    given: str, image: str, tree: release.Tree, tmp_path: Path
) -> None:
    packed = release.chart(tree, DIGEST, tmp_path)
    ran = subprocess.run(
        [need("helm"), "template", "gpunode", str(packed), f"--set={given}"],
        capture_output=True,
        text=True,
        check=True,
    )
    _, daemon = daemon_of([found for found in documents(ran.stdout) if found])
    assert daemon["image"] == image


@pytest.mark.integration
def test_one_command_makes_a_release_and_pushes_it(clone: Path, tmp_path: Path) -> None:
    helm, after = need("helm"), "9.8.8"
    work, remote = tmp_path / "work", tmp_path / "remote"
    for bare, to in ((["--bare"], remote), ([], work)):
        twice.git(tmp_path, "clone", "--quiet", *bare, str(clone if bare else remote), str(to))
    changes = (work / release.CHANGELOG).read_text()
    entry = f"{release.UNRELEASED}\n### Added\n\n- Something.\n"
    (work / release.CHANGELOG).write_text(changes.replace(release.UNRELEASED, entry, 1))
    twice.git(work, "commit", "--quiet", "--all", "--message", "Add something")
    here = ("INSTALLED=", f"BIN={Path(sys.executable).parent}", f"MONITORING={Path(helm).parent}")
    command = ["make", "release", f"VERSION={after}", "PUSH=origin", *here]
    who = {
        f"GIT_{of}_{what}": "test" for of in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **who, "PYTHONPATH": f"{work}:{work / 'exporter'}"}
    made = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert twice.git(remote, "tag", "--list", f"v{after}") == f"v{after}"
    subjects = twice.git(remote, "log", "-3", "--format=%s").splitlines()
    kept = f"Keep the chart of {after}, from which tests upgrade"
    assert subjects == [kept, f"Release {after}", "Add something"]
    there = twice.git(remote, "ls-tree", "--name-only", "HEAD", "tests/helm/released/")
    assert there == f"tests/helm/released/gpunode-{after}.tgz"
    assert release.tree(remote, f"v{after}", tmp_path / "tree").version == after


# The workflow


def uses() -> list[tuple[str, str]]:
    """Each action that a workflow uses, and the comment beside it."""
    return [
        (found[1], found[2])
        for path in WORKFLOWS
        for found in re.finditer(r"uses: (\S+)(.*)", path.read_text())
    ]


def test_actions_are_pinned_by_commit_and_say_which_version_that_is() -> None:
    assert len(uses()) > 20
    for action, comment in uses():
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert len({action for action, _ in uses()}) == len({a.partition("@")[0] for a, _ in uses()})


def test_workflows_and_the_settings_of_dependabot_are_as_their_schemas_say() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    for schema, paths in {
        "vendor.github-workflows": WORKFLOWS,
        "vendor.dependabot": [ROOT / ".github/dependabot.yml"],
    }.items():
        command = [*checker, schema, *map(str, paths)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


def test_actionlint_finds_nothing() -> None:
    command = [need("actionlint"), "-no-color", *map(str, WORKFLOWS)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_nothing_is_published_that_was_not_made_twice_and_looked_through() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]

    def before(name: str) -> set[str]:
        needed = jobs[name].get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        return set(needed).union(*map(before, needed)) if needed else set()

    publishing = {name for name in jobs if name.startswith("publish-")}
    assert len(publishing) == 3
    for name, job in jobs.items():
        writes = {"write"} & set(job.get("permissions", {}).values())
        assert bool(writes) == (name in publishing), name
        if name in publishing:
            assert before(name) >= {"agree", "image", "files", "same", "vulnerabilities"}


def test_a_severe_vulnerability_that_is_mended_elsewhere_ends_the_release() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]
    gate = jobs["vulnerabilities"]
    built = {runner.endswith("-arm") for runner in jobs["image"]["strategy"]["matrix"]["runner"]}
    looked_at = gate["strategy"]["matrix"]["architecture"]
    assert {one == "arm64" for one in looked_at} == built == {False, True}
    (scan,) = (one for one in gate["steps"] if "anchore/scan-action" in one.get("uses", ""))
    assert scan["with"]["sbom"] == "image/${{ matrix.architecture }}.cdx.json"
    assert scan["with"]["fail-build"] is True
    assert scan["with"]["severity-cutoff"] == "high"
    assert scan["with"]["only-fixed"] is True
    for one in (gate, *gate["steps"]):
        assert "continue-on-error" not in one
        assert "if" not in one


def test_image_and_chart_are_signed_and_attested_by_the_digest_that_was_pushed() -> None:
    workflow = ROOT / ".github/workflows/release.yaml"
    steps = yaml.safe_load(workflow.read_text())["jobs"]["publish-image"]["steps"]
    names = [step.get("name") for step in steps]
    sign = next(step for step in steps if "cosign sign" in step.get("run", ""))
    assert '"$IMAGE@$IMAGE_DIGEST" "$CHARTS/gpunode@$CHART_DIGEST"' in sign["run"]
    assert steps.index(sign) > names.index("Push the chart")
    attested = [step for step in steps if step.get("uses", "").startswith("actions/attest-")]
    subjects = [step["with"]["subject-digest"] for step in attested]
    digests = ("image.outputs.digest", "chart.outputs.digest", "image.outputs.amd64")
    for digest in (*digests, "image.outputs.arm64"):
        assert f"${{{{ steps.{digest} }}}}" in subjects
    assert all(step["with"]["push-to-registry"] for step in attested)


def test_the_dry_run_builds_every_program_that_its_tests_take() -> None:
    makes = ["make", "--dry-run", "--always-make", "release-dry-run"]
    built = subprocess.run(makes, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if f"helm/build.sh {ROOT}" in built:
        built += (ROOT / "helm/build.sh").read_text()
    here = Path(__file__)
    sources = [path.read_text() for path in (here, Path(twice.__file__))]
    taken = set(re.findall(r'need\("([\w-]+)"\)', "".join(sources)))
    taken |= {"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"}  # of control_plane
    assert taken > {"actionlint", "helm", "promtool", "registry"}
    for program in taken:
        assert re.search(rf"(cmd/|[( ]){program}\b", built), program


def test_every_python_is_tried_on_both_architectures() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"]
    matrix = jobs["supported"]["strategy"]["matrix"]
    project = (ROOT / "pyproject.toml").read_text()
    assert matrix["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert matrix["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


def test_what_tests_pin_can_be_had_for_every_python_or_says_from_which_on() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    pinned = [Requirement(text) for text in re.findall(r'^    "(.+==.+)",$', project, re.MULTILINE)]
    assert len(pinned) > 4
    for each in pinned:
        try:
            about = distribution(each.name).metadata
        except PackageNotFoundError:
            continue  # one that is not for this Python
        supported = SpecifierSet(about["Requires-Python"] or "")
        for python in re.findall(r'Python :: (3\.\d+)"', project):
            if each.marker is None or each.marker.evaluate({"python_version": python}):
                assert f"{python}.99" in supported, f"{each} for Python {python}"


# All of it twice, and through a registry


@pytest.fixture(scope="session")
def made(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the command makes of the tag, twice."""
    folders = [tmp_path_factory.mktemp("made") for _ in range(2)]
    for folder in folders:
        twice.files(clone, folder)
    return folders


@pytest.mark.integration
def test_two_makes_give_the_same_bytes(made: list[Path]) -> None:
    first, again = ((folder / "SHA256SUMS").read_text() for folder in made)
    print(first)
    assert first == again
    assert {line.partition("  ")[2] for line in first.splitlines()} == {
        f"gpunode-{VERSION}-py3-none-any.whl",
        f"gpunode-{VERSION}.tar.gz",
        f"gpunode-{VERSION}.tgz",
        f"gpunode-{VERSION}-rules.tar.gz",
    }


@pytest.mark.integration
def test_the_archive_holds_rules_that_load_and_objects_that_need_no_crd(
    made: list[Path], tmp_path: Path
) -> None:
    with tarfile.open(made[0] / f"gpunode-{VERSION}-rules.tar.gz") as archive:
        release.extract(archive, tmp_path)
    (root,) = tmp_path.iterdir()
    rules = sorted(map(str, (root / "alerts/rules").iterdir()))
    assert len(rules) == len([*(ROOT / "alerts/rules").iterdir()])
    subprocess.run([need("promtool"), "check", "rules", *rules], check=True, capture_output=True)
    for path in (root / "dashboards").iterdir():
        assert json.loads(path.read_text())["title"]
    for profile in release.PROFILES:
        objects = list(documents((root / f"kubernetes/{profile}.yaml").read_text()))
        daemons = the(objects, "DaemonSet")["spec"]["template"]["spec"]
        images = {one["image"] for one in daemons["containers"]}
        assert images == {f"ghcr.io/gpunode/gpunode@{DIGEST}"}
        assert not [one for one in objects if ".coreos.com" in one["apiVersion"]]


@pytest.mark.integration
def test_the_chart_goes_through_a_registry_and_pulls_the_image_of_its_release(
    made: list[Path], registry: str, tmp_path: Path
) -> None:
    packed = made[0] / f"chart/gpunode-{VERSION}.tgz"
    helm = need("helm")

    def run(*command: str) -> str:
        ran = subprocess.run(
            [helm, *command, "--plain-http"], cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    run("push", str(packed), f"oci://{registry}/charts")
    run("pull", f"oci://{registry}/charts/gpunode", "--version", VERSION)
    assert (tmp_path / packed.name).read_bytes() == packed.read_bytes()
    objects = [found for found in documents(run("template", "gpunode", packed.name)) if found]
    _, daemon = daemon_of(objects)
    assert daemon["image"] == f"ghcr.io/gpunode/gpunode@{DIGEST}"
    with tarfile.open(packed) as archive:
        names = set(archive.getnames())
        readme = archive.extractfile("gpunode/README.md")
        assert readme
        text = readme.read().decode()
    assert {"gpunode/LICENSE", "gpunode/values.schema.json"} <= names
    assert not [name for name in names if "/ci/" in name]
    assert "](../" not in text
    linted = subprocess.run([helm, "lint", "--strict", str(packed)], capture_output=True)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.integration
def test_a_cluster_installs_the_chart_from_the_registry(
    made: list[Path], registry: str, tmp_path: Path
) -> None:
    packed = made[0] / f"chart/gpunode-{VERSION}.tgz"
    charts = f"oci://{registry}/installed"
    with control_plane(tmp_path) as cluster:
        for command in (
            ("push", str(packed), charts),
            ("install", "gpunode", f"{charts}/gpunode", "--version", VERSION),
        ):
            ran = cluster.run("helm", *command, "--plain-http")
            assert ran.returncode == 0, ran.stderr
        daemons = cluster.get("daemonset/gpunode")
    assert daemons["metadata"]["labels"]["app.kubernetes.io/version"] == VERSION
    daemon = daemons["spec"]["template"]["spec"]["containers"][0]
    assert daemon["image"] == f"ghcr.io/gpunode/gpunode@{DIGEST}"
