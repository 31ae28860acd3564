"""InfiniBand, RDMA, network interfaces and TCP."""

from __future__ import annotations

from alerts.thresholds.references import INFINIBAND
from alerts.thresholds.row import NODE, Example, Threshold, Tier, gained, rate, series

PORT = f"{NODE}, device, port"
INTERFACE = f"{NODE}, interface"
PORT_ACTIVE = series("gpunode_infiniband_active", device="mlx5_0", port="1")
SYMBOL_ERRORS = series("gpunode_infiniband_errors_total", device="mlx5_0", port="1", kind="symbol")
ACK_TIMEOUTS = series(
    "gpunode_infiniband_transport_errors_total", device="mlx5_0", port="1", kind="ack_timeout"
)
CONGESTION_NOTIFICATIONS = series(
    "gpunode_infiniband_congestion_events_total", device="mlx5_0", port="1", kind="cnp_sent"
)
DROPS = series("gpunode_network_drops_total", interface="eth0", direction="receive")
DAMAGED = series("gpunode_network_errors_total", interface="eth0", direction="receive")
RETRANSMITTED = series("gpunode_tcp_segments_total", kind="retransmitted")

NETWORK = (
    Threshold(
        alert="InfinibandPortDown",
        group="network",
        summary="An InfiniBand port is down",
        summary_ko="InfiniBand 포트가 내려갔습니다",
        says="port {port} of {device} is not active",
        meaning="The port was active and no longer is; a port that never was is not reported.",
        remedy="Reseat or replace the cable; drain the node until then.",
        source=INFINIBAND,
        signal=f"min by ({PORT}) (gpunode_infiniband_active)",
        where=f"and on ({PORT}) node:gpunode_infiniband_active:ever",
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(Tier(severity="critical", threshold=0.5, after="5m"),),
        scope="node",
        labels=("device", "port"),
        gate="always",
        example=Example(fires={PORT_ACTIVE: 0.0}, quiet={PORT_ACTIVE: 1.0}, value=0.0),
    ),
    Threshold(
        alert="InfinibandErrors",
        group="network",
        summary="An InfiniBand link reports errors",
        summary_ko="InfiniBand 링크 오류가 발생했습니다",
        says="errors of kind {kind} on port {port} of {device} in 15 minutes: {value}",
        meaning="Symbol errors, link recoveries and discards point to a bad cable or port.",
        remedy="Clean, reseat or replace the cable.",
        source=INFINIBAND,
        signal=gained("gpunode_infiniband_errors_total", f"{PORT}, kind"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=10.0, after="0s"),),
        scope="node",
        labels=("device", "port", "kind"),
        gate="always",
        example=Example(fires={SYMBOL_ERRORS: 0.1}, quiet={SYMBOL_ERRORS: 0.005}, value=90.0),
    ),
    Threshold(
        alert="RdmaLoss",
        group="network",
        summary="RDMA packets are lost",
        summary_ko="RDMA 패킷이 손실되고 있습니다",
        says="{value} RDMA transport errors per second on {device}",
        meaning="The adapter counts timeouts and out-of-sequence packets, which mean lost packets.",
        remedy="Repair the lossless traffic class; check one port before the fabric.",
        source=INFINIBAND,
        signal=rate("gpunode_infiniband_transport_errors_total", PORT),
        unit="number",
        tiers=(Tier(severity="warning", threshold=1.0, after="5m"),),
        scope="node",
        labels=("device", "port"),
        gate="always",
        example=Example(fires={ACK_TIMEOUTS: 5.0}, quiet={ACK_TIMEOUTS: 0.1}, value=5.0),
    ),
    Threshold(
        alert="RdmaCongestion",
        group="network",
        summary="The RDMA network is congested",
        summary_ko="RDMA 네트워크가 혼잡합니다",
        says="{value} congestion events per second on {device}",
        meaning="The network tells senders to slow down; no packets are lost.",
        remedy="Use adaptive routing and rail-aligned placement, and remove hot spots.",
        source=INFINIBAND,
        signal=rate("gpunode_infiniband_congestion_events_total", PORT),
        unit="number",
        tiers=(Tier(severity="info", threshold=10_000.0, after="15m"),),
        scope="node",
        labels=("device", "port"),
        gate="lately",
        example=Example(
            fires={CONGESTION_NOTIFICATIONS: 50_000.0},
            quiet={CONGESTION_NOTIFICATIONS: 100.0},
            value=50_000.0,
        ),
    ),
    Threshold(
        alert="NetworkDrops",
        group="network",
        summary="A network interface drops packets",
        summary_ko="네트워크 인터페이스가 패킷을 버리고 있습니다",
        says="{interface} drops or damages {value} packets per second",
        meaning="The rings are too small, one CPU takes all interrupts, or a cable is bad.",
        remedy="Enlarge the rings, spread the interrupts, or replace the cable.",
        source="https://docs.kernel.org/networking/statistics.html",
        signal=(
            f"{rate('gpunode_network_drops_total', INTERFACE)} + on ({INTERFACE}) "
            f"{rate('gpunode_network_errors_total', INTERFACE)}"
        ),
        unit="number",
        tiers=(Tier(severity="warning", threshold=10.0, after="10m"),),
        scope="node",
        labels=("interface",),
        gate="always",
        example=Example(fires={DROPS: 50.0, DAMAGED: 0.0}, quiet={DROPS: 1.0}, value=50.0),
    ),
    Threshold(
        alert="TcpRetransmissions",
        group="network",
        summary="TCP retransmits many segments",
        summary_ko="TCP 재전송이 많습니다",
        says="{value} of the TCP segments are retransmissions",
        meaning="Packets are lost between this node and others.",
        remedy="Repair the lossy link.",
        source="https://datatracker.ietf.org/doc/html/rfc9293",
        signal=(
            rate('gpunode_tcp_segments_total{kind="retransmitted"}', NODE)
            + f" / on ({NODE}) ("
            + rate('gpunode_tcp_segments_total{kind="first"}', NODE)
            + " > 100)"
        ),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.01, after="10m"),),
        scope="node",
        gate="always",
        example=Example(
            fires={RETRANSMITTED: 50.0, series("gpunode_tcp_segments_total", kind="first"): 1000.0},
            quiet={RETRANSMITTED: 5.0},
            value=0.05,
        ),
    ),
)
