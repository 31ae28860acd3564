"""NFS requests that get no answer, told from those that were only sent twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpunode.config.daemon import Settings
from gpunode.host.nfs import IN_FLIGHT, Nfs, parse
from tests.machine import MACHINES, Machine, read_source

MOUNT = """\
device filer:/x mounted on /x with fstype nfs statvers=1.1
\txprt:\ttcp 832 1 2 0 0 {} {} 0 12154 0 24 26 5726
\tper-op statistics
"""
EVERY = 10.0


class Client(Machine):
    """A node with one NFS mount; some requests were sent before, and some of them answered."""

    def __init__(self, sent: int = 0, answered: int = 0) -> None:
        super().__init__(MACHINES / "nfs")
        self.sent, self.answered = sent, answered
        self.source = Nfs(self, Settings())
        self.after(0, 0)

    def read_text(self, path: str) -> str:
        assert path == "/proc/1/mountstats"
        return MOUNT.format(self.sent, self.answered)

    def after(self, sent: int, answered: int) -> float:
        """What is in flight after so many more were sent and answered."""
        self.clock.now += EVERY
        self.sent += sent
        self.answered += answered
        (value,) = (s.value for s in read_source(self.source) if s.metric is IN_FLIGHT)
        assert isinstance(value, float)
        return value


def test_requests_to_a_server_that_is_gone_stay_in_flight() -> None:
    client = Client()
    assert client.after(1000, 1000) == 0
    assert client.after(1000, 996) == 4
    assert [client.after(0, 0) for _ in range(1000)] == [4] * 1000
    assert client.after(60, 0) == 64


def test_an_outage_that_was_there_before_the_first_look_shows_until_it_ends() -> None:
    client = Client(500, 480)
    assert client.after(0, 0) == 20
    assert client.after(0, 20) == 0


def test_what_was_sent_twice_is_forgotten_within_the_hour_if_the_server_answers() -> None:
    client = Client()
    client.after(1000, 1000)
    client.after(64, 0)
    assert client.after(64, 64) == 64  # all of them were sent again, and answered once
    course = [client.after(100, 100) for _ in range(int(3700 / EVERY))]
    assert course[-1] == 0
    assert client.after(7, 0) == 7


def test_a_mount_that_is_used_all_the_time_does_not_hide_an_outage() -> None:
    client = Client()
    for _ in range(100):
        client.after(1001, 1000)
        client.after(999, 1000)
    assert client.after(1001, 1000) == 1


def test_a_mount_that_was_made_anew_counts_from_its_beginning() -> None:
    client = Client(10**6, 10**6 - 50)
    client.after(100, 100)
    client.sent, client.answered = 10, 10
    assert client.after(0, 0) == 0
    assert client.after(3, 0) == 3


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9))),
    st.integers(1, 200),
    st.integers(0, 20),
)
def test_all_that_is_sent_after_the_last_reply_is_in_flight(
    course: list[tuple[int, int]], unanswered: int, reads: int
) -> None:
    client = Client(5, 5)
    for answered, twice in course:
        client.after(answered + twice, answered)
    before = client.after(0, 0)
    assert client.after(unanswered, 0) == before + unanswered
    assert all(client.after(0, 0) == before + unanswered for _ in range(reads))


def test_reading_with_holes_is_reading() -> None:
    line = "\tREAD_PLUS: 1000 1000 0 1 2 30 900000 900040 0\n"
    (mount,) = parse(MOUNT.format(9, 9) + line).values()
    assert mount.operations["read"].rtt_seconds == 900.0
