"""Errors and warnings in the kernel log, counted by kind.

NVML reports XIDs too, but not those of a GPU that fell off the bus:
https://docs.nvidia.com/deploy/xid-errors/

Only the kernel can write records of facility 0 to /dev/kmsg, so these can be believed:
https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
A file in /var/log is written by a daemon that takes lines from every user, some of which may look
like the kernel's, and serves only where /dev/kmsg cannot be read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.driver.nvidia.xids import CODES, UNREAD_XID, recovery_action
from gpunode.driver.vendors import VENDORS
from gpunode.host import nvlink_xids
from gpunode.host.kernel_trouble import driver_of, troubled
from gpunode.host.nvlink_xids import NvlinkXids
from gpunode.host.pcie import DEVICES, GPU_VENDORS
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import MAX_ITEMS, MORE_XIDS, NodeSource, Reading
from gpunode.unread import Unknown, Unread, unnumbered

log = logging.getLogger(__name__)

EVENTS = Metric(
    "gpunode_kernel_log_events_total",
    "counter",
    "Events in the kernel log by kind since the daemon started (/dev/kmsg, otherwise /var/log); "
    "lines of one event of NVIDIA's driver count once.",
    ("kind",),
)
LAST = Metric(
    "gpunode_kernel_log_last_event_timestamp_seconds",
    "gauge",
    "When the last line of this kind was read (/dev/kmsg or /var/log).",
    ("kind",),
)
XIDS = Metric(
    "gpunode_kernel_log_xid_errors_total",
    "counter",
    "XID errors in the kernel log by PCI address (/dev/kmsg or /var/log).",
    ("bus_id", "xid"),
)
LAST_XID = Metric(
    "gpunode_kernel_log_last_xid_timestamp_seconds",
    "gauge",
    "When the last line with this XID was read (/dev/kmsg or /var/log).",
    ("bus_id", "xid"),
)
FOLLOWED = Metric(
    "gpunode_kernel_log_info",
    "gauge",
    "Always 1; the log that is read. Any user can write lines that look like the kernel's to "
    "/var/log, but not to /dev/kmsg. Absent while no log can be read.",
    ("path",),
)

UNREAD_LINE = Unknown(
    "kernel_line", "a driver logged a warning or an error of a form that gpunode does not know"
)
UNREAD_RECOVERY_ACTION = Unknown(
    "enum_value",
    "the driver advises, in a line of XID 154, something that has no name in gpunode",
)

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/nvidia/src/kernel/gpu/rc/kernel_rc.c
XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<address>{ADDRESS})(?: GPU-C?I:[0-9]{{1,3}}){{0,2}}\): "
    r"(?P<xid>[0-9]{1,5})\b(?:, )?"
)
AN_XID = re.compile(r"NVRM: S?Xid ")
"""Lines that are an event, whatever follows."""

RECOVERY_CHANGED = "154"
"""The XID by which the driver says what it advises now; NVML tells that, too."""

KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("xid", XID.pattern),
        (
            "sxid",
            rf"nvidia-nvswitch[0-9]{{1,3}}: SXid \(PCI:{ADDRESS}\): "
            r"(?![0-9]{1,6}, (?:Severity|Data) )[0-9]",
        ),
        (
            "nvrm",
            r"NVRM: "
            r"(?!.{0,8}[0-9]{1,5} +[0-9]{1,5} +[A-Z]|GPU[0-9]{1,3} (?:GSP )?RPC |Xid )"
            r"(?:.{0,200}(?:[Ee]rror|[Ff]ailed|fallen off|[Tt]imed? ?out|GSP|API mismatch)"
            r"|.{0,200}(?:probably locked|is invalid:|Cannot attach gpu)|BAR[0-9] is 0M "
            r"|The NVIDIA (?:GPU|probe routine) )",
        ),
        ("peermem", r"nvidia[-_]peermem .{0,80}ERROR "),
        (
            "oom_kill",
            r"Out of memory(?: \(oom_kill_allocating_task\))?: Kill"
            r"|Memory cgroup out of memory: Kill",
        ),
        (
            "bus_error",
            r"traps: .{1,40} trap: bus error|.{1,40}: bus error|.{1,40} signal 7\b"
            r"|(?:MCE: |Memory failure: 0x[0-9a-f]{1,16}: )"
            r"(?:Killing|Sending SIGBUS to) .{1,200} due to",
        ),
        (
            "lustre_eviction",
            r"LustreError: .{0,400}(?:evicted|eviction)|Lustre.{0,200}was evicted by"
            r"|Lustre: Evicted from ",
        ),
        (
            "lustre",
            r"(?:Lustre|LNet)Error: |Lustre: .{0,300}(?:Connection to .{1,200} was lost"
            r"|Request sent has (?:timed out|failed))|LNet: .{0,200}(?:[Tt]imed out|[Ee]rror)",
        ),
        (
            "nfs",
            r"(?:nfs|lockd): server \S{1,200} not responding"
            r"|(?:NFS: )?_{0,2}nfs4?_\w{1,40}: .{0,80}(?:reclaim|recovery) .{0,20}failed"
            r"|NFS: .{0,80}(?:state manager|[Ll]ock reclaim).{0,80}failed",
        ),
        (
            "remote_filesystem",
            r"libceph: (?:\[.{1,80}\]: )?(?:osd|mon|mds)[0-9]{1,6}\b"
            r".{0,120}(?:socket (?:closed|error)|connection (?:reset|failed)|bad crc"
            r"|session lost|hunting| down$)"
            r"|ceph: (?:\[.{1,80}\]: )?.{0,60}(?:caps (?:went )?stale|hung|reconnect denied"
            r"|rejected session|session blocklisted|force umount)"
            r"|rbd: rbd[0-9]{1,5}: .{0,120}(?:expired|result -[0-9]|failed|error)"
            r"|CIFS: (?:VFS: )?.{0,200}(?:has not responded|reconnect)"
            r"|mmfs(?:\[[0-9]{1,10}\])?: \[[EX]\] ",
        ),
        (
            "pcie_aer",
            rf"[\w-]{{1,32}} {ADDRESS}: (?:AER: .{{0,40}} error (?:message )?received"
            r"|AER: (?:device recovery|subordinate device reset) failed"
            r"|DPC: containment event|pciehp: Slot\(.{1,20}\): (?:Link Down|Card not present))",
        ),
        (
            "iommu_fault",
            r"DMAR: \[.{1,20}\] Request device"
            r"|(?:\w{1,16} [0-9a-f:.]{7,16}: )?AMD-Vi: Event logged \["
            r"|arm-smmu(?:-v3)? \S{1,40}: (?:event 0x|Unhandled context fault)",
        ),
        (
            "hung_task",
            r"INFO: task .{1,200} blocked (?:in I/O wait )?for more than [0-9]+ seconds",
        ),
        (
            "lockup",
            r"(?:NMI )?(?:watchdog: )?"
            r"(?:BUG: soft lockup - CPU|(?:CPU[0-9]{1,5}: )?Watchdog detected hard LOCKUP)"
            r"|(?:rcu: )?INFO: rcu.{0,40} (?:self-)?detected (?:expedited )?stall"
            r"|BUG: workqueue lockup - pool",
        ),
        (
            "kernel_bug",
            r"Kernel panic - not syncing|BUG: (?:unable to handle|kernel NULL pointer|Bad page)"
            r"|kernel BUG at "
            r"|(?:general protection fault.{0,80}|Oops|Internal error: Oops[^:]{0,20})"
            r": [0-9a-fA-FxX]{4,16} \[#[0-9]",
        ),
        ("file_limit", r"VFS: file-max limit [0-9]{1,20} reached"),
        (
            "cpu_hot",
            r"(?:mce: )?CPU[0-9]{1,5}: (?:Core|Package) temperature (?:is )?above threshold",
        ),
        (
            "machine_check",
            r"mce: \[Hardware Error\]: (?:CPU [0-9]{1,5}: Machine Check|Machine check events)"
            r"|EDAC .{0,80}\b(?:CE|UE) |Memory failure: 0x[0-9a-f]{1,16}: recovery action for "
            r"|\{[0-9]{1,8}\}\[Hardware Error\]: Hardware error from APEI",
        ),
        (
            "disk_error",
            r"(?:\w{1,32}: )?(?:I/O|timeout|protection|recoverable transport"
            r"|critical (?:medium|target|space allocation)) error, dev (?!fd[0-9]|sr[0-9])"
            r"|Buffer I/O error on dev(?:ice)? (?!fd[0-9]|sr[0-9])"
            r"|nvme nvme[0-9]{1,4}: (?:(?!Shutdown ).{1,80}timeout|controller is down"
            r"|Device not ready|Disabling device after reset failure|Removing after probe failure"
            r"|frozen state error detected|Abort status: 0x(?!0+\b)|starting error recovery"
            r"|Failed reconnect attempt)"
            r"|nvme[0-9]{1,4}(?:c[0-9]{1,4})?n[0-9]{1,4}: .{1,100}I/O Error \(sct 0x"
            r"|block nvme\w{1,16}: no available path - failing I/O"
            r"|EXT4-fs error \(device |EXT4-fs warning \(device .{1,64}\): ext4_end_bio"
            r"|EXT4-fs \(.{1,64}\): (?:(?:previous )?I/O error |Delayed block allocation failed)"
            r"|JBD2: (?:Detected IO errors|I/O error)|Aborting journal on device "
            r"|XFS \(.{1,64}\): (?:(?:metadata|log) I/O error|Metadata (?:corruption|CRC error)"
            r"|writeback error|Internal error )|BTRFS (?:error|critical) \(device "
            r"|BTRFS warning \(device .{1,64}\): csum failed"
            r"|md/raid\w{0,16}(?::\w{1,16})?: (?:Disk failure on |read error )"
            r"|md: super_written gets error"
            r"|device-mapper: multipath: .{0,40}Failing path ",
        ),
        (
            "read_only",
            r"[\w-]{1,16} \(.{1,64}\): [Rr]emounting filesystem read-only"
            r"|XFS \(.{1,64}\): (?:.{1,200}Shutting down filesystem|Filesystem has been shut down)"
            r"|BTRFS info \(device .{1,80}\): forced readonly",
        ),
        (
            "link_down",
            rf"mlx5_core {ADDRESS}.{{1,100}}(?:Link (?:down|DOWN)|[Pp]ort module .{{0,60}}"
            r"(?:unplug|absent|Cable error(?!.{0,40}(?:High Temperature|power))))"
            rf"|[\w-]{{1,32}} {ADDRESS} [\w.-]{{1,16}}: (?:\w{{1,16}}: [\w.-]{{1,16}} )?"
            r"(?:NIC |Device )?[Ll]ink is [Dd]own"
            r"|[\w.-]{1,16}: (?:\(slave [\w.-]{1,16}\): )?link status definitely down",
        ),
        (
            "network_adapter",
            # mlx5_core may come without an address, or as its functions alone
            rf"(?:mlx5_core(?: {ADDRESS})?.{{0,160}}"
            r"|(?:infiniband [\w.-]{1,32}: )?mlx5_\w{1,40}:[0-9]{1,6}:.{0,60})"
            r"(?:(?<!ext_)synd 0x|device's health compromised|TX timeout detected"
            r"|High [Tt]emperature|insufficient(?:/unadvertised)? power on the PCIe slot"
            r"|leak of a command resource|enable hca failed|raw fw_ver 0xffffffff"
            r"|power slot Exceeded|[Ff]atal error|[Hh]ealth recovery .{0,20}(?:fail|abort)"
            r"|No done completion"
            r"|handling bad device|Firmware over |mlx5_(?:load|init)_one.{0,20} failed"
            r"|[Ee]rror cqe on cqn)"
            r"|(?:[\w-]{1,32} \S{1,40} [\w.-]{1,16}: )?NETDEV WATCHDOG: "
            r"(?:CPU: [0-9]{1,5}: |[\w.-]{1,16} \([\w-]{0,32}\): )?transmit queue"
            rf"|[\w-]{{1,32}} {ADDRESS} [\w.-]{{1,32}}: (?:TX timeout|[Tt]x[_ ]timeout"
            r"|PCIe link lost)"
            rf"|(?:infiniband [\w.-]{{1,32}}|[\w-]{{1,32}} {ADDRESS}(?: [\w.-]{{1,32}})?): "
            r"(?:Wait for completion \(polling\) timeout|The .{0,10}device didn't send"
            r"|Admin queue is closed|Reset indication didn't turn|Device isn't ready"
            r"|Reg read timeout|Keep alive watchdog timeout|Failed to (?:allocate|create) HW "
            r"|QPLIB: .{0,60}(?:status 0x0*[1-9a-f]|timed ?out)|Firmware (?:not responding|fatal)"
            r"|Error \(timeout|Resetting due to firmware error|Malicious Driver Detection"
            r"|.{0,40}[Ff]irmware (?:hang|crash))",
        ),
    )
)
"""Of what takes several lines to tell, one is matched: of a GSP's timeout not the history of calls,
of a PCIe error not the devices that reported it.

The first pattern that matches the beginning of a message decides: the rest of a message may hold
the name of a process, a cgroup or a file. Wildcards are bounded so that none is slow to match."""

# NAME[1234]: segfault at …, NAME (1234) used …, NAME invoked oom-killer, NAME: page allocation …
PROCESS_MESSAGE = re.compile(
    r".{0,15}(?:\[[0-9]{1,10}\]:? | \([0-9]{1,10}\)[: ]| invoked |: page allocation )"
)
"""A message that begins with the name of a process, of up to 15 characters of its own choice."""

BEYOND_DEVICE = re.compile(r".{0,15}: attempt to access beyond end of device")
"""Begins with such a name, too, and says of a disk that it is smaller than its filesystem."""

GPU_CLASSES = "0x0300", "0x0302"
"""Beginnings of /sys/bus/pci/devices/*/class: https://pci-ids.ucw.cz/read/PD/03"""

ALWAYS_COUNTED = frozenset(str(xid) for v in VENDORS.values() for xid in v.watched_errors)
"""XIDs that are counted even if many others came before them."""

KMSG = "/dev/kmsg"
LOGS = (KMSG, "/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
# PRIORITY,SEQUENCE,TIME,FLAGS[,…];MESSAGE; the priority is 8 x facility + level.
RECORD = re.compile(r"[0-7],[0-9]{1,20},(?P<microseconds>[0-9]{1,20}),[^;]{1,64};")
# Nov  1 12:00:00 HOST kernel: [  123.456789] MESSAGE, or with a time of RFC 3339, or the thread or
# core that wrote it: [  123.456789][ T4242] MESSAGE
SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.+Z-]{8,24})"
    r" \S{1,255} (?:kernel: "
    r"(?:\[ {0,8}(?P<seconds>[0-9]{1,12}\.[0-9]{6})\](?:\[ {0,8}[CT][0-9]{1,10}\])? )?"
    r"|(?=mmfs(?:\[[0-9]{1,10}\])?: ))"
)
"""GPFS's daemon writes the errors of its filesystems there, and never to /dev/kmsg."""

OTHER = "other"
"""The name by which XIDs count that came after many others."""

ONE_EVENT = 0.1
"""Seconds between two lines of a driver that tell of one event: a dump of a GSP's state takes 0.03,
and one that does not boot is tried again after 0.17.
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1230"""

START_SECONDS = 5.0
"""Seconds for which the driver may try before it says that a GPU did not start: those took 1.05.
https://github.com/NVIDIA/nvtrust/issues/77, https://github.com/NVIDIA/NVSentinel/issues/155"""

START_FAILED = re.compile(
    r"NVRM: (?:GPU \S{1,16}: (?:RmInitAdapter|rm_init_adapter) failed"
    r"|The NVIDIA probe routine failed)"
)
"""What the driver says in the end of a GPU that did not start."""

MULTILINE_KINDS = frozenset({"nvrm", "network_adapter"})
"""Kinds of which a driver may write several lines of one event."""

LOGGED = re.compile(r"mce: \[Hardware Error\]: Machine check events logged")
"""Lines that only report another line."""

MAX_LINE = 4096
"""Characters of a line to match; the kernel writes at most 1,024 per record."""


def kind_of(message: str) -> str | None:
    """The kind of a kernel message, or None if it is not of interest."""
    if BEYOND_DEVICE.match(message):
        return "disk_error"
    kind = next((kind for kind, pattern in KINDS if pattern.match(message)), None)
    return None if kind not in (None, "bus_error") and PROCESS_MESSAGE.match(message) else kind


def message_of(path: str, line: str) -> str | None:
    """The message in a line of a log, or None if the kernel did not write it."""
    start = (RECORD if path == KMSG else SYSLOG).match(line[:MAX_LINE])
    return line[start.end() : MAX_LINE] if start else None


def level_of(path: str, line: str) -> int | None:
    """How urgent a record of the kernel is, from 0 to 7; None in a log that does not say."""
    return int(line[0]) if path == KMSG and RECORD.match(line) else None


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A message of the kernel: how urgent it is, and when it was written, where its log says so."""

    message: str
    level: int | None
    seconds: float | None
    driver: str
    """What wrote it, where that is a driver of which lines are looked at."""

    @classmethod
    def of(cls, path: str, line: str) -> KernelLine | None:
        """None if the kernel did not write it."""
        start = (RECORD if path == KMSG else SYSLOG).match(line[:MAX_LINE])
        if start is None:
            return None
        message, when = line[start.end() : MAX_LINE], start.groupdict()
        scale, text = (1e-6, when["microseconds"]) if path == KMSG else (1.0, when["seconds"])
        seconds = None if text is None else float(text) * scale
        return cls(message, level_of(path, line), seconds, driver_of(message))


def events_of(lines: Iterable[KernelLine]) -> Iterator[list[KernelLine]]:
    """The lines that a driver wrote of one event: one after another, each soon after the last."""
    event: list[KernelLine] = []
    for line in lines:
        if event and not _follows(event[-1], line, unless_known=True):
            yield event
            event = []
        event.append(line)
    if event:
        yield event


def _is_strange(line: KernelLine) -> bool:
    return troubled(line.message, line.level) and not PROCESS_MESSAGE.match(line.message)


def _follows(last: KernelLine, line: KernelLine, *, unless_known: bool = False) -> bool:
    """Whether a driver wrote a line soon after another; where no times are known, as said."""
    if not line.driver or line.driver != last.driver:
        return False
    if line.seconds is None or last.seconds is None:
        return unless_known
    ends = START_FAILED.match(line.message) and not START_FAILED.match(last.message)
    return abs(line.seconds - last.seconds) <= (START_SECONDS if ends else ONE_EVENT)


class KernelLog:
    """Follows the kernel log, beginning at its end when the daemon starts."""

    name = "kernel_log"
    needs = (
        "/dev/kmsg: as root or with SYSLOG; or the group adm for the log in /var/log; a "
        "container of gpunode takes --device /dev/kmsg"
    )
    metrics = (EVENTS, LAST, XIDS, LAST_XID, *nvlink_xids.METRICS, FOLLOWED)
    unknowns = (
        UNREAD_LINE,
        MORE_XIDS,
        UNREAD_XID,
        UNREAD_RECOVERY_ACTION,
        nvlink_xids.UNREAD_NVLINK,
    )

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self.path: str | None = None
        self.events = {kind: 0 for kind, _ in KINDS}
        self.times: dict[str, float] = {}
        self.xids: dict[str, dict[str, int]] = {}
        self.xid_times: dict[tuple[str, str], float] = {}
        self.nvlink = NvlinkXids()
        self._told: KernelLine | None = None
        self._checked: KernelLine | None = None
        self._devices: set[str] = set()
        self._failure: str | None = None

    def read(self) -> Reading:
        """Count the lines since the last read; nothing where there is no log, as in a container.

        Raises ``OSError`` if no log could be read yet. Where it could, what was counted stays true.
        """
        self._find_gpus()
        failure = None
        try:
            lines = self._lines()
        except FileNotFoundError:
            return Reading(tuple(self._samples()) if self.path else ())
        except OSError as error:
            if self.path is None:
                raise
            lines, failure = [], str(error)
        self._complain(failure)
        unread = [found for event in events_of(lines) for found in self._count_event(event)]
        return Reading(tuple(self._samples()), unread=tuple(unread))

    def _lines(self) -> list[KernelLine]:
        """The new messages of the first log that can be read. Raises ``OSError``."""
        here = False
        for path in LOGS:
            try:
                lines = self.node.log_lines(path)
            except FileNotFoundError:
                continue
            except OSError:
                here = True
                continue
            before, self.path = self.path, path
            # Another log may hold what was counted already.
            new = lines if before in (None, path) else []
            return [line for text in new if (line := KernelLine.of(path, text)) is not None]
        if not here:
            raise FileNotFoundError
        raise OSError(
            f"cannot read any of {', '.join(LOGS)}: /dev/kmsg requires CAP_SYSLOG if "
            "kernel.dmesg_restrict is 1, the files require the group adm",
        )

    def _complain(self, failure: str | None) -> None:
        """Log a failure when it begins and when it ends."""
        if failure and not self._failure:
            log.warning("kernel_log: its counts stand still: %s", failure)
        elif self._failure and not failure:
            log.info("kernel_log: reads %s again", self.path)
        self._failure = failure

    def _count_event(self, event: list[KernelLine]) -> Iterator[Unread]:
        """Count the lines of an event, and say what of it is not understood.

        What a driver writes before and after a line that is known belongs to it, as a dump does; of
        an event without one, the first line that looks like trouble is told.
        """
        kinds = [kind_of(line.message) for line in event]
        goes_on = self._told is not None and _follows(self._told, event[0])
        told = goes_on or any(kind is not None for kind in kinds)
        counted = set(MULTILINE_KINDS) if goes_on else ({"nvrm"} if "xid" in kinds else set())
        for line, kind in zip(event, kinds, strict=True):
            if kind is None or kind in counted or self._is_told(line, kind):
                continue
            counted |= MULTILINE_KINDS & {kind}
            yield from self._count(line.message, kind)
        strange = [
            line.message
            for line, kind in zip(event, kinds, strict=True)
            if kind is None and (not told or AN_XID.match(line.message)) and _is_strange(line)
        ]
        yield from (UNREAD_LINE.seen(unnumbered(message)) for message in strange[:1])
        self._told = event[-1] if told else None

    def _is_told(self, line: KernelLine, kind: str) -> bool:
        """Whether a line of an error of the hardware is about one that was just counted."""
        if kind != "machine_check":
            return False
        last, self._checked = self._checked, line
        if last is None or last.seconds is None or line.seconds is None:
            return False
        either = LOGGED.match(last.message) or LOGGED.match(line.message)
        return bool(either) and abs(line.seconds - last.seconds) <= ONE_EVENT

    def _count(self, message: str, kind: str) -> Iterator[Unread]:
        """Count a message of a kind, and say what of it is not understood."""
        if kind == "xid":
            match = XID.match(message)
            bus_id = self._bus_id(match["address"]) if match else None
            if match is None or bus_id is None:
                yield UNREAD_LINE.seen(unnumbered(message))
                return
            yield from self._count_xid(bus_id, match["xid"], message[match.end() :])
        self.events[kind] += 1
        self.times[kind] = self.node.clock.time()

    def _bus_id(self, address: str) -> str | None:
        """The GPU of this node that an XID is of, by its name in /sys; None for any other."""
        address = address.lower()
        bus_id = address if "." in address else f"{address}.0"
        return bus_id if bus_id in self.xids else None

    def _count_xid(self, bus_id: str, xid: str, text: str) -> Iterator[Unread]:
        """Count an XID, and say what of it is not understood; ``text`` is what follows it."""
        counts, now = self.xids[bus_id], self.node.clock.time()
        if int(xid) not in CODES:
            yield UNREAD_XID.seen(f"XID {xid}")
        if xid == RECOVERY_CHANGED and recovery_action(text) is None:
            yield UNREAD_RECOVERY_ACTION.seen(f"XID {xid}, {unnumbered(text)}")
        yield from self.nvlink.count(bus_id, xid, text, now)
        if xid not in counts and xid not in ALWAYS_COUNTED and len(counts) >= MAX_ITEMS:
            yield MORE_XIDS.seen(f"XID {xid}, after {MAX_ITEMS} different ones")
            xid = OTHER
        counts[xid] = counts.get(xid, 0) + 1
        self.xid_times[bus_id, xid] = now

    def _find_gpus(self) -> None:
        """Add GPUs that are new; one that is gone may still have something to say."""
        try:
            listed = set(self.node.list_directory(DEVICES))
        except OSError:
            return
        for bus_id in sorted(listed - self._devices):
            try:
                vendor = self.node.read_text(f"{DEVICES}/{bus_id}/vendor").strip()
                kind = self.node.read_text(f"{DEVICES}/{bus_id}/class")
            except OSError:
                continue
            if vendor in GPU_VENDORS and kind.startswith(GPU_CLASSES):
                self.xids.setdefault(bus_id, {})
        self._devices = listed

    def _samples(self) -> Iterator[Sample]:
        for kind, count in self.events.items():
            yield from EVENTS.at(float(count), kind)
        for kind, time in self.times.items():
            yield from LAST.at(time, kind)
        for bus_id, counts in self.xids.items():
            for xid, count in counts.items():
                yield from XIDS.at(float(count), bus_id, xid)
        for at, time in self.xid_times.items():
            yield from LAST_XID.at(time, *at)
        yield from self.nvlink.samples()
        if self.path is not None and self._failure is None:
            yield from FOLLOWED.at(1.0, self.path)


NODE_SOURCE: NodeSource = KernelLog
