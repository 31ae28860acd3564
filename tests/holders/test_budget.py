"""To whom the time counts for which a process makes the daemon wait."""

from __future__ import annotations

from gpunode.node.cgroup import budget
from tests.cases import with_each

POD = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice".format(
    "aaaaaaaa_bbbb_cccc_dddd_eeeeeeeeeeee"
)
ID = "0123456789abcdef" * 4
SLURM = "/system.slice/slurmstepd.scope/job_17"


@with_each(
    [
        ((f"{POD}/cri-containerd-{ID}.scope", f"{POD}/crio-{ID[::-1]}.scope/mine/{{n}}"), "aaaa"),
        ((f"{SLURM}/step_0/user/task_0", f"{SLURM}/step_1", f"{SLURM}/step_0/user/{{n}}"), "17"),
        ((f"/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope/{{n}}"), ID),
        (("/user.slice/user-1000.slice/session-{n}.scope", "/user.slice/user-1000.slice"), "1000"),
        (("/user.slice/user-1000.slice/user@1000.service/app.slice/{n}.scope",), "user 1000"),
        (("/../../user.slice/user-1000.slice/user@1000.service/{n}",), "user 1000"),
        (("/", "/anything/{n}", "/system.slice/a-{n}.service", "nothing"), "user 7"),
        (("/x/user.slice/user-1000.slice/{n}",), "user 7"),
    ]
)
def test_however_many_cgroups_an_owner_has_he_has_one_budget(
    paths: tuple[str, ...], owner: str
) -> None:
    found = {budget(f"0::{path.format(n=n)}\n", "7") for path in paths for n in range(20)}
    assert len(found) == 1
    assert owner in found.pop()


def test_a_rootless_container_has_the_budget_of_who_runs_it() -> None:
    path = "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{}.scope/container\n"
    found = {budget(path.format(f"{n:064x}"), str(100_000 + n)) for n in range(50)}
    assert found == {"user 1000"}
