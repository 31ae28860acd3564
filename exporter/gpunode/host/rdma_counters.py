"""What the counters of RDMA adapters mean, by driver.

No two drivers use a name for different things (a test compares them), so a counter is looked up by
its name alone, and a driver that takes names from others is understood where its own are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

What = Literal[
    "bytes",
    "wait",
    "link_error",
    "congestion",
    "loss",
    "retransmitted_bytes",
    "retransmitted_packets",
    "failure",
]
"""``loss`` is a sign of a packet that was lost and repeated, or that had to be; ``failure`` a
request or command that ended with an error, which mostly means that a program or a peer ended."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a counter counts.

    Those of one ``what`` and ``kind`` are added up. Of counters that say the same, or of which one
    is the sum of others, those of the lowest ``choice`` that the port has are taken.
    ``unit`` is how many bytes, packets or events each count stands for.
    """

    what: What
    kind: str = ""
    unit: float = 1.0
    choice: int = 0


Counters = Mapping[str, Meaning | None]
"""The names of counters; None for one that is known and is no sign of trouble, such as the number
of requests, a part of what another counts, or a setting."""

WORD_BYTES = 4.0
LIFESPAN: Counters = {"lifespan": None}
"""Milliseconds for which a counter that was read is kept."""


def group(names: str, meaning: Meaning | None) -> Iterator[tuple[str, Meaning | None]]:
    """Counters of the same meaning."""
    return ((name, meaning) for name in names.split())


def _loss(kind: str, choice: int = 0) -> Meaning:
    return Meaning("loss", kind, choice=choice)


def _error(kind: str) -> Meaning:
    return Meaning("link_error", kind)


def _congestion(kind: str, choice: int = 0) -> Meaning:
    return Meaning("congestion", kind, choice=choice)


def _failure(kind: str, choice: int = 0) -> Meaning:
    return Meaning("failure", kind, choice=choice)


def _bytes(direction: str, unit: float = 1.0, choice: int = 2) -> Meaning:
    """Bytes of the whole port; the standard's counters come before a driver's own."""
    return Meaning("bytes", direction, unit, choice)


STANDARD: Counters = {
    **LIFESPAN,
    # Since Linux 4.5 those of ``counters`` have 64 bits on most adapters, and there is no
    # ``counters_ext``.
    "port_rcv_data_64": _bytes("receive", WORD_BYTES, choice=0),
    "port_xmit_data_64": _bytes("transmit", WORD_BYTES, choice=0),
    "port_rcv_data": _bytes("receive", WORD_BYTES, choice=1),
    "port_xmit_data": _bytes("transmit", WORD_BYTES, choice=1),
    "port_xmit_wait": Meaning("wait"),
    "symbol_error": _error("symbol"),
    "link_error_recovery": _error("link_recovery"),
    "link_downed": _error("link_downed"),
    "port_rcv_errors": _error("receive"),
    "port_xmit_discards": _error("discard"),
    "local_link_integrity_errors": _error("integrity"),
    "excessive_buffer_overrun_errors": _error("buffer_overrun"),
    "port_rcv_remote_physical_errors": _error("remote_physical"),
    "port_rcv_switch_relay_errors": _error("switch_relay"),
    "port_rcv_constraint_errors": _error("constraint"),
    "port_xmit_constraint_errors": _error("constraint"),
    "VL15_dropped": _error("vl15_dropped"),
    **dict(
        group(
            "port_rcv_packets port_xmit_packets unicast_rcv_packets unicast_xmit_packets "
            "multicast_rcv_packets multicast_xmit_packets port_rcv_packets_64 "
            "port_xmit_packets_64 port_unicast_rcv_packets port_unicast_xmit_packets "
            "port_multicast_rcv_packets port_multicast_xmit_packets",
            None,
        )
    ),
}
"""The standard counters, in ``counters``, alike in all drivers; data are in words of 4 bytes.

https://docs.kernel.org/admin-guide/abi-stable-files.html#abi-file-stable-sysfs-class-infiniband
"""

BITS = {
    4: "local_link_integrity_errors excessive_buffer_overrun_errors",
    8: "link_error_recovery link_downed port_rcv_constraint_errors port_xmit_constraint_errors",
    16: "symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
    "port_xmit_discards VL15_dropped",
    32: "port_xmit_wait port_rcv_data port_xmit_data",
}
SATURATED = {name: 2.0**bits - 1 for bits, names in BITS.items() for name in names.split()}
"""The counts at which those of ``counters`` stay until they are reset (InfiniBand Architecture
Specification 1, 16.1.3.5). One with more bits, as data have on most adapters, goes on.

https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/sysfs.c (``PORT_PMA_ATTR``)
"""

MLX5: Counters = {
    "out_of_sequence": _loss("out_of_sequence"),
    "packet_seq_err": _loss("sequence_nak"),
    "implied_nak_seq_err": _loss("sequence_nak"),
    "local_ack_timeout_err": _loss("ack_timeout"),
    "rnr_nak_retry_err": _loss("receiver_not_ready"),
    "out_of_buffer": _loss("out_of_buffer"),
    "roce_adp_retrans": _loss("adaptive_retransmission"),
    "roce_adp_retrans_to": _loss("adaptive_retransmission"),
    "duplicate_request": _loss("duplicate"),
    "rx_icrc_encapsulated": _error("crc"),
    "np_cnp_sent": _congestion("cnp_sent"),
    "rp_cnp_handled": _congestion("cnp_handled"),
    "rp_cnp_ignored": _congestion("cnp_ignored"),
    "np_ecn_marked_roce_packets": _congestion("ecn_marked"),
    "roce_slow_restart": _congestion("slow_restart"),
    **dict(group("roce_slow_restart_cnps roce_slow_restart_trans", _congestion("slow_restart", 1))),
    "cc_tx_cnp_pkts": _congestion("cnp_sent", 1),
    "cc_rx_cnp_pkts": _congestion("cnp_handled", 1),
    "cc_rx_ce_pkts": _congestion("ecn_marked", 1),
    **dict(group("req_cqe_error resp_cqe_error", _failure("request"))),
    **dict(
        group(
            "resp_local_length_error req_remote_invalid_request req_remote_access_errors "
            "resp_remote_access_errors",
            _failure("request", 1),
        )
    ),
    **dict(
        group(
            "req_transport_retries_exceeded req_rnr_retries_exceeded", _failure("retries_exceeded")
        )
    ),
    "rdma_rx_bytes": _bytes("receive", choice=3),
    "rdma_tx_bytes": _bytes("transmit", choice=3),
    **dict(
        group(
            "rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect "
            "resp_cqe_flush_error req_cqe_flush_error rdma_rx_packets rdma_tx_packets",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/mlx5/counters.c
https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters

Flushed requests are those of a queue pair that is torn down."""

EFA: Counters = {
    "rx_bytes": _bytes("receive"),
    "tx_bytes": _bytes("transmit"),
    "rx_drops": _loss("dropped"),
    "retrans_timeout_events": _loss("path_change"),
    "impaired_remote_conn_events": _loss("impaired_remote"),
    "unresponsive_remote_events": _loss("unresponsive_remote"),
    "retrans_bytes": Meaning("retransmitted_bytes"),
    "retrans_pkts": Meaning("retransmitted_packets"),
    **dict(group("rdma_read_wr_err rdma_write_wr_err", _failure("request"))),
    "cmds_err": _failure("command"),
    **dict(
        group(
            "no_completion_cmds alloc_pd_err create_qp_err create_cq_err reg_mr_err "
            "alloc_ucontext_err create_ah_err mmap_err",
            _failure("command", 1),
        )
    ),
    **dict(
        group(
            "tx_pkts rx_pkts send_bytes recv_bytes rdma_read_bytes rdma_read_resp_bytes "
            "rdma_write_bytes rdma_write_recv_bytes send_wrs recv_wrs rdma_read_wrs rdma_write_wrs "
            "submitted_cmds completed_cmds keep_alive_rcvd",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/efa/efa_verbs.c
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html

The bytes of each operation are parts of those of the port. AWS's table has the units of
``retrans_bytes`` and ``retrans_pkts`` the wrong way round. SRD sends over many paths and repairs
losses itself, so some retransmissions, and changes to another path after a time-out, are normal:
https://ieeexplore.ieee.org/document/9167399"""

BNXT_RE: Counters = {
    "rx_bytes": _bytes("receive"),
    "tx_bytes": _bytes("transmit"),
    "rx_roce_errors": _error("receive"),
    "tx_roce_errors": _error("transmit"),
    **dict(group("rx_roce_discards tx_roce_discards", _loss("dropped"))),
    "to_retransmits": _loss("ack_timeout"),
    **dict(group("seq_err_naks_rcvd missing_resp", _loss("sequence_nak"))),
    "rnr_naks_rcvd": _loss("receiver_not_ready"),
    "dup_req": _loss("duplicate"),
    "oos_drop_count": _loss("out_of_sequence"),
    "rx_out_of_buffer": _loss("out_of_buffer"),
    "np_cnp_pkts": _congestion("cnp_sent"),
    "max_retry_exceeded": _failure("retries_exceeded"),
    **dict(
        group(
            "unrecoverable_err bad_resp_err local_qp_op_err local_protection_err mem_mgmt_op_err "
            "remote_invalid_req_err remote_access_err remote_op_err res_exceed_max "
            "res_length_mismatch res_exceeds_wqe res_opcode_err res_rx_invalid_rkey "
            "res_rx_domain_err res_rx_no_perm res_rx_range_err res_tx_invalid_rkey "
            "res_tx_domain_err res_tx_no_perm res_tx_range_err res_irrq_oflow res_unsup_opcode "
            "res_unaligned_atomic res_rem_inv_err res_mem_err res_srq_err res_cmp_err "
            "res_invalid_dup_rkey res_wqe_format_err res_cq_load_err res_srq_load_err "
            "res_tx_pci_err res_rx_pci_err",
            _failure("request", 1),
        )
    ),
    **dict(group("rx_good_bytes rx_roce_good_bytes", _bytes("receive", choice=3))),
    "rx_roce_only_bytes": _bytes("receive", choice=4),
    "tx_roce_only_bytes": _bytes("transmit", choice=4),
    **dict(
        group(
            "rx_pkts tx_pkts rx_good_pkts rx_roce_good_pkts rx_roce_only_pkts tx_roce_only_pkts "
            "recoverable_errors resize_cq_cnt "
            "active_pds active_ahs active_qps active_rc_qps active_ud_qps active_srqs active_cqs "
            "active_mrs active_mws watermark_pds watermark_ahs watermark_qps watermark_rc_qps "
            "watermark_ud_qps watermark_srqs watermark_cqs watermark_mrs watermark_mws "
            "tx_atomic_req tx_read_req tx_read_resp tx_write_req tx_send_req rx_atomic_req "
            "rx_read_req rx_read_resp rx_write_req rx_send_req pacing_reschedule pacing_complete "
            "pacing_alerts db_fifo_register",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/bnxt_re/hw_counters.c

Of Linux, and of Broadcom's own driver, which has many names of mlx5. ``recoverable_errors`` is
filled with the broadcasts that were sent."""

IRDMA: Counters = {
    **dict(group("ip4InOctets ip6InOctets", _bytes("receive"))),
    **dict(group("ip4OutOctets ip6OutOctets", _bytes("transmit"))),
    **dict(group("tcpRetransSegs RetransSegs", _loss("retransmission"))),
    **dict(group("ip4InDiscards ip6InDiscards", _loss("dropped"))),
    "RTO": _loss("ack_timeout"),
    "RNR received": _loss("receiver_not_ready"),
    "RNR sent": _loss("out_of_buffer"),
    "Nak Sequence Error": _loss("sequence_nak"),
    "Nak Sequence Error Implied": _loss("sequence_nak"),
    "Rcvd Out of order packets": _loss("out_of_sequence"),
    "CRC errors": _error("crc"),
    "cnpSent": _congestion("cnp_sent"),
    "cnpHandled": _congestion("cnp_handled"),
    "cnpIgnored": _congestion("cnp_ignored"),
    "RxECNMrkd": _congestion("ecn_marked"),
    **dict(
        group(
            "ip4OutNoRoutes ip6OutNoRoutes ip4InTruncatedPkts ip6InTruncatedPkts rxVlanErrors "
            "tcpInOptErrors tcpInProtoErrors InOptErrors InProtoErrors",
            _failure("packet"),
        )
    ),
    **dict(
        group(
            "ip4InMcastOctets ip4OutMcastOctets ip6InMcastOctets ip6OutMcastOctets ip4InPkts "
            "ip6InPkts ip4OutPkts ip6OutPkts ip4InReasmRqd ip4InMcastPkts ip4OutSegRqd "
            "ip4OutMcastPkts ip6InReasmRqd ip6InMcastPkts ip6OutSegRqd ip6OutMcastPkts tcpInSegs "
            "tcpOutSegs InSegs OutSegs RxUDP TxUDP iwInRdmaReads iwInRdmaSends iwInRdmaWrites "
            "iwOutRdmaReads iwOutRdmaSends iwOutRdmaWrites iwRdmaBnd iwRdmaInv InRdmaReads "
            "InRdmaSends InRdmaWrites OutRdmaReads OutRdmaSends OutRdmaWrites RdmaBnd RdmaInv",
            None,
        )
    ),
    "ord limit count": None,
    "ird limit count": None,
    "Rx atomics": None,
    "Tx atomics": None,
    "Rx ATS": None,
    "Tx ATS": None,
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/irdma/verbs.c

Also i40iw, from which it came. The names with spaces are those of the third generation."""

HNS: Counters = {
    "rx_err_pkt": _error("receive"),
    "tx_err_pkt": _error("transmit"),
    "tx_cnp_pkt": _congestion("cnp_sent"),
    "rx_cnp_pkt": _congestion("cnp_handled"),
    **dict(group("trp_get_mpt_err_pkt trp_get_irrl_err_pkt", _failure("packet"))),
    "cmds_err": _failure("command"),
    **dict(
        group(
            "qp_create_err qp_modify_err cq_create_err cq_modify_err srq_create_err "
            "srq_modify_err xrcd_alloc_err mr_reg_err mr_rereg_err ah_create_err mmap_err "
            "uctx_alloc_err",
            _failure("command", 1),
        )
    ),
    **dict(
        group(
            "rx_rc_pkt rx_uc_pkt rx_ud_pkt rx_xrc_pkt rx_pkt tx_rc_pkt tx_uc_pkt tx_ud_pkt "
            "tx_xrc_pkt tx_pkt ecn_db rx_buf trp_rx_sof cq_cqe cq_poe cq_notify aeqe ceqe cmds "
            "posted_mbx polled_mbx mbx_event",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/hns/hns_roce_main.c

It counts packets and no bytes."""

MANA: Counters = {
    "rx_bytes": _bytes("receive"),
    "tx_bytes": _bytes("transmit"),
    "requester_timeout": _loss("ack_timeout"),
    **dict(
        group(
            "requester_oos_nak requester_implicit_nak requester_readresp_psn_mismatch",
            _loss("sequence_nak"),
        )
    ),
    "requester_rnr_nak": _loss("receiver_not_ready"),
    "responder_rnr_nak": _loss("out_of_buffer"),
    "responder_oos": _loss("out_of_sequence"),
    "responder_dup_request": _loss("duplicate"),
    "dup_rx_requests": _loss("duplicate", 1),
    "sent_cnps": _congestion("cnp_sent"),
    "received_cnps": _congestion("cnp_handled"),
    "received_cnp_count": _congestion("cnp_handled", 1),
    "received_ecns": _congestion("ecn_marked"),
    **dict(
        group(
            "requester_rnr_nak_retries_exceeded requester_retries_exceeded",
            _failure("retries_exceeded"),
        )
    ),
    **dict(
        group(
            "nak_inv_req nak_access_error nak_opp_error nak_inv_read responder_local_len_error "
            "requestor_local_prot_error responder_rem_access_error responder_local_qp_error "
            "responder_malformed_wqe general_hw_error total_fatal_error",
            _failure("request", 1),
        )
    ),
    **dict(
        group(
            "tx_packets rx_packets num_qps_congested rate_inc_events num_qps_recovered "
            "current_rate rx_send_requests rx_write_requests rx_read_requests qp_congested_events "
            "qp_recovered_events",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/mana/counters.c"""

_VERBS = "alloc_mr alloc_pd alloc_uctx create_cq create_qp dealloc_pd dealloc_uctx dereg_mr "
_VERBS += "destroy_cq destroy_qp get_dma_mr reg_usr_mr"
ERDMA: Counters = {
    **dict(group("rx_bytes_cnt hw_rx_bytes_cnt", _bytes("receive"))),
    **dict(group("tx_bytes_cnt hw_tx_bytes_cnt", _bytes("transmit"))),
    **dict(
        group(
            "tx_disable_drop_cnt rx_disable_drop_cnt tx_bps_limit_drop_cnt tx_pps_limit_drop_cnt "
            "rx_bps_limit_drop_cnt rx_pps_limit_drop_cnt hw_disable_drop_cnt "
            "hw_rx_disable_drop_cnt hw_bps_limit_drop_cnt hw_pps_limit_drop_cnt "
            "hw_rx_bps_limit_drop_cnt hw_rx_pps_limit_drop_cnt",
            _loss("dropped"),
        )
    ),
    **{f"verbs_{verb}_failed_cnt": _failure("command") for verb in _VERBS.split()},
    **dict(
        group(
            "connect_failed_cnt connect_timeout_cnt connect_reset_cnt accept_failed_cnt "
            "reject_failed_cnt listen_failed_cnt",
            _failure("connection"),
        )
    ),
    **{f"verbs_{verb}_cnt": None for verb in _VERBS.split()},
    **dict(
        group(
            "tx_reqs_cnt tx_packets_cnt rx_packets_cnt hw_tx_reqs_cnt hw_tx_packets_cnt "
            "hw_rx_packets_cnt listen_create_cnt listen_ipv6_cnt listen_success_cnt "
            "listen_destroy_cnt accept_total_cnt accept_success_cnt reject_cnt connect_total_cnt "
            "connect_success_cnt cmdq_submitted_cnt cmdq_comp_cnt cmdq_eq_notify_cnt "
            "cmdq_eq_event_cnt cmdq_cq_armed_cnt erdma_aeq_event_cnt erdma_aeq_notify_cnt",
            None,
        )
    ),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/erdma/erdma_verbs.c

Of Linux, and of Alibaba's own driver. Packets beyond the limits of the instance are dropped."""

IONIC: Counters = {
    **dict(group("rx_rdma_ucast_bytes rx_rdma_mcast_bytes", _bytes("receive"))),
    **dict(group("tx_rdma_ucast_bytes tx_rdma_mcast_bytes", _bytes("transmit"))),
    "tx_rdma_ack_timeout": _loss("ack_timeout"),
    **dict(group("req_rx_pkt_seq_err req_rx_impl_nak_seq_err", _loss("sequence_nak"))),
    "req_rx_rnr_retry_err": _loss("receiver_not_ready"),
    "resp_rx_outouf_seq": _loss("out_of_sequence"),
    "resp_tx_pkt_seq_err": _loss("out_of_sequence", 1),
    "resp_rx_outof_buf": _loss("out_of_buffer"),
    "resp_tx_rnr_retry_err": _loss("out_of_buffer", 1),
    **dict(group("resp_rx_dup_request req_rx_dup_response", _loss("duplicate"))),
    "tx_rdma_retx_bytes": Meaning("retransmitted_bytes"),
    "tx_rdma_retx_pkts": Meaning("retransmitted_packets"),
    "tx_rdma_cnp_pkts": _congestion("cnp_sent"),
    "rx_rdma_cnp_pkts": _congestion("cnp_handled"),
    "rx_rdma_ecn_pkts": _congestion("ecn_marked"),
    **dict(
        group("req_rx_inval_pkts resp_rx_s0_table_err rx_rdma_mtu_discard_pkts", _failure("packet"))
    ),
    "req_tx_retry_excd_err": _failure("retries_exceeded"),
    **dict(group("req_rx_cqe_err resp_rx_cqe_err", _failure("request"))),
    **dict(
        group(
            "req_rx_rmt_acc_err req_rx_rmt_req_err req_rx_oper_err req_tx_loc_acc_err "
            "req_tx_loc_oper_err req_tx_mem_mgmt_err req_tx_loc_sgl_inv_err resp_rx_loc_len_err "
            "resp_rx_inval_request resp_rx_loc_oper_err resp_rx_outof_atomic "
            "resp_tx_rmt_inval_req_err resp_tx_rmt_acc_err resp_tx_rmt_oper_err "
            "resp_tx_loc_sgl_inv_err",
            _failure("request", 1),
        )
    ),
    **dict(
        group(
            "rx_rdma_ucast_pkts rx_rdma_mcast_pkts tx_rdma_ucast_pkts tx_rdma_mcast_pkts "
            "req_rx_cqe_flush resp_rx_cqe_flush tx_rdma_ccl_cts_bytes tx_rdma_ccl_cts_pkts "
            "tx_rdma_ccl_cts_retx_bytes tx_rdma_ccl_cts_retx_pkts tx_rdma_ccl_cts_ack_timeout "
            "rx_rdma_ccl_cts_bytes rx_rdma_ccl_cts_pkts resp_rx_ccl_cts_outouf_seq",
            None,
        )
    ),
}
"""Names that the adapter's firmware gives: https://github.com/pensando/sw
https://github.com/ROCm/rocm-systems/tree/develop/projects/rccl"""

RXE: Counters = {
    "duplicate_request": _loss("duplicate"),
    "out_of_seq_request": _loss("out_of_sequence"),
    "rcvd_rnr_err": _loss("receiver_not_ready"),
    "send_rnr_err": _loss("out_of_buffer"),
    "rcvd_seq_err": _loss("sequence_nak"),
    "completer_retry_err": _loss("retransmission"),
    **dict(group("retry_exceeded_err retry_rnr_exceeded_err", _failure("retries_exceeded"))),
    "send_err": _failure("packet"),
    "link_downed": _error("link_downed"),
    **dict(group("sent_pkts rcvd_pkts ack_deferred rdma_sends rdma_recvs", None)),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/sw/rxe/rxe_hw_counters.c"""

MLX4: Counters = {
    "rq_num_oos": _loss("out_of_sequence"),
    "sq_num_oos": _loss("sequence_nak"),
    "sq_num_to": _loss("ack_timeout"),
    "sq_num_rnr": _loss("receiver_not_ready"),
    **dict(group("rq_num_rnr rq_num_udsdprd", _loss("out_of_buffer"))),
    "rq_num_dup": _loss("duplicate"),
    **dict(group("sq_num_tree sq_num_rree", _failure("retries_exceeded"))),
    **dict(
        group(
            "rq_num_lle sq_num_lle rq_num_lqpoe sq_num_lqpoe rq_num_lpe sq_num_lpe sq_num_mwbe "
            "sq_num_bre sq_num_rire rq_num_rire sq_num_rae rq_num_rae sq_num_roe num_cqovf",
            _failure("request"),
        )
    ),
    **dict(group("rq_num_wrfe sq_num_wrfe", None)),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/mlx4/main.c"""

CXGB4: Counters = {
    **dict(group("ip4RetransSegs ip6RetransSegs", _loss("retransmission"))),
    **dict(group("ip4InSegs ip4OutSegs ip4OutRsts ip6InSegs ip6OutSegs ip6OutRsts", None)),
}
"""https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/cxgb4/provider.c"""

DRIVERS: Mapping[str, Counters] = {
    "standard": STANDARD,
    "mlx5": MLX5,
    "efa": EFA,
    "bnxt_re": BNXT_RE,
    "irdma": IRDMA,
    "hns": HNS,
    "mana": MANA,
    "erdma": ERDMA,
    "ionic": IONIC,
    "rxe": RXE,
    "mlx4": MLX4,
    "cxgb4": CXGB4,
}

MEANINGS: Counters = {name: of for counters in DRIVERS.values() for name, of in counters.items()}

REGISTERS = frozenset({"hfi1"})
"""Drivers that show hundreds of the chip's registers in ``hw_counters``, beside the counters of the
standard, which tell what matters:
https://github.com/torvalds/linux/blob/master/drivers/infiniband/hw/hfi1/verbs.c"""

VPORT_PREFIX = "vport_"
"""Begins the names of the counters of a virtual function's port at mlx5's embedded switch."""

CXI: Mapping[str, Meaning] = {
    "hni_sts_rx_ok_octets": _bytes("receive"),
    "hni_sts_tx_ok_octets": _bytes("transmit"),
    "hni_pcs_uncorrected_cw": _error("uncorrected_codewords"),
    **{f"hni_llr_{way}_replay_event": _loss("link_replay") for way in ("tx", "rx")},
    "pct_retry_srb_requests": _loss("retransmission"),
    "pct_bad_seq_nacks": _loss("sequence_nak"),
    "pct_no_matching_tct": _loss("sequence_nak"),
    **{f"pct_{what}_timeouts": _loss("ack_timeout") for what in ("spt", "sct", "tct")},
    "pct_trs_rsp_nack_drops": _loss("dropped"),
    "ee_events_dropped_ordinary_cntr": _loss("out_of_buffer"),
    **{
        f"pct_{what}": _congestion("receiver_busy")
        for what in ("no_tct_nacks", "no_trs_nacks", "no_mst_nacks", "resource_busy")
    },
}
"""HPE's Slingshot: the few of 1,600 files that tell of traffic and trouble. Each holds
``VALUE@SECONDS.NANOSECONDS``.

https://github.com/HewlettPackard/shs-docs
https://github.com/ROCm/omnistat/blob/main/omnistat/collector_network.py"""


def kinds(what: What) -> set[str]:
    """The kinds that the counters of all drivers have."""
    every = (of for counters in (*DRIVERS.values(), CXI) for of in counters.values())
    return {of.kind for of in every if of and of.what == what}
