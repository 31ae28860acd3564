"""Lines of the kernel that look like trouble of a part that training needs, and have no kind.

Only lines of the drivers below are looked at. A line of level warning or worse is trouble unless it
is known to be ordinary; where a log has no levels, a word has to say so.
https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
"""

from __future__ import annotations

import re

WARNING = 4
"""The level of a warning; 0 is an emergency: https://docs.kernel.org/core-api/printk-basics.html"""

_AT = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
DRIVER_LINE = re.compile(
    r"NVRM: |nvidia(?:[-_]\w{1,20})?: |nvidia[-_](?:nvswitch|nvlink|uvm|peermem|fs)\w{0,4}[ :]"
    rf"|(?:nvidia|mlx[45]_core|efa|ena|bnxt_en|bnxt_re|ice|i40e|idpf|irdma|gve|mana|ionic|hns3"
    rf"|hns_roce|qede|cxi_\w{{1,8}}) {_AT}"
    r"|mlx[45]_(?:core|ib): |mlx5_\w{1,40}:[0-9]{1,6}:|infiniband [\w.-]{1,32}: "
    r"|(?:block )?nvme[ 0-9]|EXT4-fs |JBD2: |XFS \(|BTRFS |md/raid|device-mapper: multipath: "
    r"|(?:Lustre|LNet)(?:Error)?: |nfs: |NFS: |NFS4: |nfs4?_\w{1,40}: |lockd: "
    r"|(?:lib)?ceph: |rbd: |CIFS: |beegfs\w{0,16}: |EDAC |DMAR: |AMD-Vi: |arm-smmu"
)
"""Beginnings of the lines of drivers of GPUs, adapters, disks and filesystems."""

WORDS = re.compile(
    r"\b(?:S?Xid|errors?|err|fail(?:s|ed|ure|ing)?|fatal|fault|timed? ?out|timeout|unable|cannot"
    r"|can't|couldn't|didn't|invalid|corrupt(?:ed|ion)?|lost|dead|died|hung|stuck|panic"
    r"|abort(?:ed|ing)?|unrecoverable|uncorrect(?:ed|able)|exceeded|overrun|degraded"
    r"|unexpected(?:ly)?|refused|rejected|denied|broken|bad|wrong|issue|leak|insufficient|locked|down|shutdown|unmount"
    r"|not (?:ready|responding))\b",
    re.IGNORECASE,
)
"""Words of trouble."""

GREETINGS = re.compile(
    r"\b(?:load(?:ed|ing)|unload(?:ed|ing)|mount(?:ed|ing)|unmount(?:ed|ing)|initiali[sz]ed"
    r"|registered|unregistered|up|enabl(?:ed|ing)|version|plugged|renamed|restored|renewed|OK"
    r"|established|success(?:ful|fully)?|completed?|supported|recommended|queues|using|added|setup"
    r"|accept|major device number|StrdRq|taints?|vgaarb|bandwidth|open|probing|active|recovered"
    r"|succeeded)\b",
    re.IGNORECASE,
)
"""Words of ordinary lines, which have no word of trouble."""

ORDINARY = re.compile(
    # what belongs to an XID, and the driver's recovery action
    r"NVRM: (?: {2}|GPU at PCI:|GPU Board Serial|GPU \S{1,20}: GPU serial number"
    r"|GPU[0-9]{1,3} (?:GSP )?RPC |.{0,8}[0-9]{1,5} +[0-9]{1,5} +[A-Z]|A GPU crash dump"
    r"|nvidia-bug-report|(?:GPU[0-9]{1,3} )?(?:testIfDsmSubFunctionEnabled|iovaspaceDestruct_IMPL"
    r"|kflcnCoreDump\w{1,24}): |.{0,40}\(the GPU is likely in a bad state"
    r"|(?:this command|\(PCI ID: |installed in this|Persistence mode|If you|Please|Try |again\."
    r"|reconfigure|driver\(s\)|was loaded|obtained ownership|This can occur|nouveau, )"
    r"|.{0,60}software scheduler"
    r"|.{0,40}(?:is already bound to|PreserveVideoMemoryAllocations|No NVIDIA (?:devices|GPU)))"
    r"|nvidia-nvswitch[0-9]{1,3}: SXid .{1,40}: [0-9]{1,6}, (?:Severity|Data) "
    r"|nvidia.{0,20}module verification failed"
    # what follows an error of PCI Express
    rf"|[\w-]{{1,32}} {_AT}: (?:AER: |PCIe Bus Error|  )"
    # the registers of an adapter whose fault is told by another line
    r"|mlx5_core .{0,60}(?:print_health_info:|assert_(?:var|exit_ptr|callra)|hw_id |irisc_index "
    r"|ext_synd |fw_ver |mlx5_error_sw_reset|health recovery|recovered |E-Switch: )"
    # a request that ended with an error, as when a peer ends: the port counts it
    r"|infiniband [\w.-]{1,32}: dump_cqe:"
    # an exporter read a register that this function may not:
    # https://github.com/prometheus/node_exporter/issues/3434
    r"|mlx5_core .{0,60}(?:mlx5_cmd_(?:out_err|check|do|exec)).{0,40}ACCESS_REG"
    r"|mlx5_core .{0,60}(?:Port module event: .{0,20}plugged|FWTracer|PTM is not supported)"
    # what a disk lacks
    r"|nvme nvme[0-9]{1,4}: (?:Shutdown timeout set|missing or invalid SUBNQN|Abort status: 0x0+\b"
    r"|ignoring ctrl due to duplicate|Ignoring bogus Namespace|resetting controller|Removing ctrl"
    r"|failed to (?:allocate host memory buffer|set APST feature))"
    r"|nvme[0-9]{1,4}: Admin Cmd\(0x[0-9a-f]{1,2}\), I/O Error \(sct 0x0 / sc 0x[12]\)"
    r"|(?:EXT4-fs|XFS) \(.{1,64}\): (?:(?:re-)?mounted|Mounting|[Uu]nmounting|Ending"
    r"|recovery complete|Starting recovery|orphan cleanup|metadata_csum_seed|.{0,60}deprecated"
    r"|error count since|(?:initial|last) error at)"
    # what several lines tell
    r"|EDAC .{0,24}(?:HANDLING MCE|CPU [0-9]{1,5}: Machine Check|TSC |ADDR |MISC |PROCESSOR |Giving"
    r"|DEBUG|Ver: |F[0-9a-f]{2}h|v[0-9])"
    r"|DMAR: (?:\[Firmware|DRHD: handling fault|[0-9]{1,5} callbacks|fault reason|RMRR|ATSR|SATC"
    r"|ANDD|Host address|No |dmar|Intel|IOMMU|Setting|Hardware|Using|Enabled|x2apic|Queued)"
    r"|(?:Lustre|LNet): .{0,300}(?:Connection restored|Skipped [0-9]{1,9} previous|Reconnecting"
    r"|recovery is|will be in recovery|Layout lock|Ignoring interface|EQ callback)"
    r"|libceph: (?:\[.{1,80}\]: )?osd[0-9]{1,6} (?:up$|weight )"
    r"|ceph: .{0,80}(?:reconnect start|recovery completed)"
    r"|device-mapper: multipath: (?:version|.{0,40}Reinstating path)"
)
"""Known lines that are no trouble, or the rest of one that is counted."""


def driver_of(message: str) -> str:
    """The driver of a part that training needs that a message is of; empty for others."""
    match = DRIVER_LINE.match(message)
    return match[0] if match else ""


def troubled(message: str, level: int | None) -> bool:
    """Whether a message that has no kind looks like trouble of a part that training needs.

    ``level`` is that of its record, None in a log that has none.
    """
    if not DRIVER_LINE.match(message) or ORDINARY.match(message):
        return False
    if WORDS.search(message):
        return level is None or level <= WARNING
    return level is not None and level <= WARNING and not GREETINGS.search(message)
