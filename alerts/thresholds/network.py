"""InfiniBand, RDMA, network interfaces and TCP."""

from __future__ import annotations

from alerts.examples import series
from alerts.model import Example, Threshold, Tier
from alerts.promql import NODE, gained, rate
from alerts.recording.faults import PORT_ACTIVE
from alerts.settings import (
    PORT_DOWN,
    RDMA_LINK_ERRORS,
    RDMA_LINKS_LOST,
    RDMA_LOST_PACKETS,
    RDMA_SENT_AGAIN,
)
from alerts.thresholds.references import INFINIBAND
from gpunode.host.infiniband import ELSEWHERE

PORT = f"{NODE}, device, port"
SYMBOL_ERRORS = series("gpunode_infiniband_errors_total", device="mlx5_0", port="1", kind="symbol")
OF_THE_LINK = f'gpunode_infiniband_errors_total{{kind!~"{"|".join(ELSEWHERE)}"}}'
LOST = 'gpunode_infiniband_transport_errors_total{kind!="path_change"}'
"""An adapter that sends over many paths leaves one for another as it works: see SENT_AGAIN."""

LINK_DOWNED = 'gpunode_infiniband_errors_total{kind="link_downed"}'
SENT = 'gpunode_infiniband_bytes_total{direction="transmit"}'
SENT_AGAIN = (
    f"{gained('gpunode_infiniband_retransmitted_bytes_total', PORT)} "
    f"/ on ({PORT}) ({gained(SENT, PORT)} > 0)"
)
BOTH_WAYS = f"{NODE}, interface, direction"
DROPS = series("gpunode_network_drops_total", interface="eth0", direction="receive")
DAMAGED = series("gpunode_network_errors_total", interface="eth0", direction="receive")

NETWORK = (
    Threshold(
        alert="NetworkPortDown",
        group="network",
        summary="A port or interface of a node is down or comes and goes",
        summary_ko="네트워크 포트가 내려갔거나 끊김을 반복합니다",
        says="{device} (port {port}) was up for {value} of the last ten minutes",
        meaning="The port was up once, and nobody has declared the node repaired since; one that "
        "never was up is not reported.",
        remedy="Reseat or replace the cable; drain the node until then.",
        source=INFINIBAND,
        record="node:gpunode_port:up",
        window="10m",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=PORT_DOWN.figure, after="5m"),),
        scope="node",
        labels=("device", "port"),
        fault="network",
        keep_firing_for="5m",
        example=Example(fires={PORT_ACTIVE: 0.0}, quiet={PORT_ACTIVE: 1.0}, value=0.0),
    ),
    Threshold(
        alert="RdmaErrors",
        group="network",
        summary="An RDMA link reports errors or loses packets",
        summary_ko="RDMA 링크에서 오류나 패킷 손실이 발생했습니다",
        says="errors of port {port} of {device} in 15 minutes, or times that its link was lost "
        "in an hour: {value}",
        when="port {port} of {device} has {rdma_link_errors} errors of its link or "
        "{rdma_lost_packets} signs of lost packets in 15 minutes, or loses its link "
        "{rdma_links_lost} times in an hour, or, where the adapter repairs losses itself (AWS "
        "EFA), sends {rdma_sent_again} of its bytes again",
        meaning="Symbol errors, link recoveries, time-outs and packets out of sequence; a link "
        "that is lost again and again; an adapter that sends much again.",
        remedy="Clean, reseat or replace the cable; check the lossless traffic class.",
        source=INFINIBAND,
        record="node:gpunode_rdma:errors",
        signal=(
            f"{gained(OF_THE_LINK, PORT)} > {RDMA_LINK_ERRORS} or "
            f"{gained(LOST, PORT)} > {RDMA_LOST_PACKETS} or "
            f"{gained(LINK_DOWNED, PORT, '1h')} > {RDMA_LINKS_LOST} or "
            f"{gained('gpunode_infiniband_retransmitted_packets_total', PORT)} "
            f"> {RDMA_LOST_PACKETS} and on ({PORT}) {SENT_AGAIN} > {RDMA_SENT_AGAIN}"
        ),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="5m"),),
        scope="node",
        labels=("device", "port"),
        fault="network",
        every="1m",
        example=Example(fires={SYMBOL_ERRORS: 0.1}, quiet={SYMBOL_ERRORS: 0.005}, value=90.0),
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
        record="node:gpunode_network_drops:rate5m",
        signal=(
            f"sum by ({NODE}, interface) ({rate('gpunode_network_drops_total', BOTH_WAYS)} "
            f"or label_replace({rate('gpunode_network_errors_total', BOTH_WAYS)}, "
            '"direction", "damaged $1", "direction", "(.*)")) > 0'
        ),
        unit="number",
        tiers=(Tier(severity="ticket", threshold=10.0, after="10m"),),
        scope="node",
        labels=("interface",),
        fault="network",
        example=Example(fires={DROPS: 50.0, DAMAGED: 0.0}, quiet={DROPS: 1.0}, value=50.0),
    ),
)
