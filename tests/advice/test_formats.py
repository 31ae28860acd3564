"""What is handed over: fields as those who take them declare them, and text that is only text."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf import timestamp_pb2 as timestamp
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpunode.advice.formats import (
    CONDITION,
    CONDITION_REASONS,
    FORMATS,
    MAX_REASON_BYTES,
    RECOMMENDED,
)
from gpunode.advice.node import NodeAdvice, advice
from gpunode.advice.safe_text import MAX_NAME, name, sentence
from gpunode.advice.series import NodeSeries, SeriesSample
from gpunode.jobs.owners import OWNER_LABELS

NEWEST = "1.37.0"
SAFE = re.compile(r"[A-Za-z0-9 ._/@+,-]*")

EVIL = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="';\"`$(){}[]<>|&*?!#~%^=:\\ -\n\r\t\0aé", max_size=60),
)

HOSTILE = 'x\'; "$(touch /tmp/pwned)" `id` # - : {a: b}\nstate=idle --reason=\u202eno'


def node(
    *,
    node: str = "n-1",
    xid: str = "119",
    owner: str = "llama-0",
    uuid: str = "GPU-3",
    and_xid: str = "",
) -> NodeAdvice:
    """The advice for a node with an XID or two on GPU 3, and tenants of that name."""
    at = {"gpu": "3", "uuid": uuid}
    bus = {"bus_id": "0000:1b:00.0", "minor": "5"}
    info = {**at, **bus, "parent": "", "compute_capability": "9.0"}
    series = (
        SeriesSample("gpunode_gpu_info", info, 1.0),
        *(
            SeriesSample(
                "gpunode_fault_start_timestamp_seconds",
                {**at, "part": "gpu", "name": "", "reason": f"xid_{one}", "severity": "page"},
                1_700_000_000.0,
            )
            for one in filter(None, (xid, and_xid))
        ),
        SeriesSample("gpunode_gpu_owner_info", {**at, **dict.fromkeys(OWNER_LABELS, owner)}, 1.0),
    )
    return advice(NodeSeries(node, 1_700_000_060.0, series))


def quiet() -> NodeAdvice:
    info = {"gpu": "0", "uuid": "GPU-0", "parent": "", "compute_capability": "9.0"}
    return advice(
        NodeSeries("n-1", 1_700_000_060.0, (SeriesSample("gpunode_gpu_info", info, 1.0),))
    )


def blind() -> NodeAdvice:
    return advice(NodeSeries("n-1", 1_700_000_060.0, ()))


def formatted(format_name: str, *advised: NodeAdvice) -> Any:
    return json.loads(FORMATS[format_name](advised, len(advised) == 1))


def texts(document: Any) -> Iterator[str]:
    """Every text in a document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from texts(value)


# Cleaning


@given(EVIL)
@example(HOSTILE)
def test_a_name_is_one_word_that_is_no_option(text: str) -> None:
    cleaned = name(text)
    assert re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9._/@+-]*)?", cleaned)
    assert len(cleaned) <= MAX_NAME
    assert shlex.split(cleaned) == ([cleaned] if cleaned else [])
    assert name(cleaned) == cleaned


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?", fullmatch=True))
def test_a_name_of_kubernetes_stays_as_it_is(text: str) -> None:
    assert name(text) == text


@given(EVIL, st.integers(20, 300))
@example(HOSTILE, 255)
def test_a_sentence_is_plain_text_and_not_too_long(text: str, longest: int) -> None:
    cleaned = sentence(text, longest)
    assert SAFE.fullmatch(cleaned)
    assert len(cleaned) <= longest
    assert cleaned == " ".join(cleaned.split())


@given(EVIL)
@example(HOSTILE)
def test_the_reason_for_slurm_is_one_line_that_shells_and_yaml_take_as_it_is(text: str) -> None:
    said = FORMATS["slurm-reason"]([node(owner=text, uuid=text)], True)
    assert said.endswith("\n")
    reason = said[:-1]
    assert reason.startswith("gpunode reset GPU 3")
    assert SAFE.fullmatch(reason)
    assert len(reason.encode()) <= MAX_REASON_BYTES
    assert shlex.split(f'reason="{reason}"') == [f"reason={reason}"]
    assert shlex.split(f"reason='{reason}'") == [f"reason={reason}"]
    assert shlex.split(reason) == reason.split()
    assert yaml.safe_load(f"reason: {reason}") == {"reason": reason}


@pytest.mark.parametrize("quoted", ['"{}"', "'{}'", "{}"])
def test_a_shell_runs_nothing_of_it(quoted: str) -> None:
    reason = FORMATS["slurm-reason"]([node(owner=HOSTILE)], True).strip()
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s ' {quoted.format(reason)}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (shown.stdout.strip(), shown.stderr) == (reason, "")


@settings(max_examples=50)
@given(EVIL)
@example(HOSTILE)
def test_every_format_has_only_plain_text_of_tenants(text: str) -> None:
    advised = node(node=text or "n", owner=text, uuid=text)
    for form in ("json", "node-condition", "health-event", "device-taint"):
        for found in texts(formatted(form, advised)):
            assert re.fullmatch(r"[A-Za-z0-9 ._/@+,:-]*", found), found


# Slurm


def test_the_reason_says_first_what_to_do_and_then_why_and_whom_it_harms() -> None:
    assert FORMATS["slurm-reason"]([node(owner="a")], True) == (
        "gpunode reset GPU 3, XID 119, reset the GPU, harms a/a\n"
    )


def test_nodes_that_are_not_to_be_drained_have_no_reason() -> None:
    advised = [quiet(), blind(), node(xid="31"), node(xid="54")]
    assert FORMATS["slurm-reason"](advised, False) == ""
    assert FORMATS["slurm-reason"]([node(node="n-7"), quiet()], False).startswith("n-7 gpunode ")


# Kubernetes


@pytest.mark.parametrize(
    ("advised", "status", "reason"),
    [
        (node(), "True", "GpuNeedsReset"),
        (node(xid="79"), "True", "NodeNeedsReboot"),
        (node(xid="31"), "False", "NothingAdvised"),
        (node(xid="54"), "False", "NothingAdvised"),
        (quiet(), "False", "NothingAdvised"),
        (blind(), "Unknown", "NothingKnown"),
    ],
)
def test_the_condition_is_one_of_a_node(advised: NodeAdvice, status: str, reason: str) -> None:
    found = formatted("node-condition", advised)
    assert kubernetes_validate.validate({**found, "spec": {}}, NEWEST, strict=True)
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (CONDITION, status)
    assert condition["reason"] == reason
    listed = formatted("node-condition", advised, advised)
    assert [one["kind"] for one in (listed, *listed["items"])] == ["List", "Node", "Node"]


def test_a_device_that_nobody_should_get_has_a_rule_with_its_evidence_and_whom_it_harms() -> None:
    (rule,) = formatted("device-taint", node())["items"]
    assert kubernetes_validate.validate(rule, NEWEST, strict=True)
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n-1", "device": "gpu-5"},
        "taint": {"key": "gpunode/unhealthy", "value": "GpuNeedsReset", "effect": "NoSchedule"},
    }
    annotations = rule["metadata"]["annotations"]
    assert annotations["gpunode/evidence"] == "XID 119, reset the GPU"
    assert annotations["gpunode/harmed-if-evicted"] == "llama-0/llama-0"
    for leaves_it in (node(xid="31"), quiet(), blind()):
        assert formatted("device-taint", leaves_it)["items"] == []


def test_the_evidence_of_a_rule_is_of_faults_that_take_the_gpu_out() -> None:
    (rule,) = formatted("device-taint", node(and_xid="31"))["items"]
    assert rule["metadata"]["annotations"]["gpunode/evidence"] == "XID 119, reset the GPU"


@pytest.mark.parametrize("name", ["n-1", HOSTILE, "N_1." + "x" * 300])
def test_a_rule_has_a_name_that_kubernetes_takes(name: str) -> None:
    (rule,) = formatted("device-taint", node(node=name, owner=HOSTILE))["items"]
    called = rule["metadata"]["name"]
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", called), called
    assert len(called) <= 253
    assert called.endswith("gpu-5")


def test_kubernetes_refuses_what_is_no_condition() -> None:
    found = formatted("node-condition", node())
    found["status"]["conditions"][0]["status"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, NEWEST, strict=True)


def test_reasons_are_one_camel_case_word() -> None:
    for reason in (CONDITION, *CONDITION_REASONS.values()):
        assert re.fullmatch(r"([A-Z][a-z]+)+", reason)


# NVSentinel

ACTIONS = {
    "NONE": 0,
    "COMPONENT_RESET": 2,
    "CONTACT_SUPPORT": 5,
    "RUN_FIELDDIAG": 6,
    "RESTART_VM": 15,
    "RESTART_BM": 24,
    "REPLACE_VM": 25,
    "RUN_DCGMEUD": 26,
    "RESTART_APP": 39,
    "UNKNOWN": 99,
}
"""https://github.com/NVIDIA/NVSentinel/blob/264bfab/data-models/protobufs/health_event.proto"""

STRATEGIES = {"UNSPECIFIED": 0, "EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2}
FIELDS = [
    ("version", 1, "uint32"),
    ("agent", 2, "string"),
    ("componentClass", 3, "string"),
    ("checkName", 4, "string"),
    ("isFatal", 5, "bool"),
    ("isHealthy", 6, "bool"),
    ("message", 7, "string"),
    ("recommendedAction", 8, ".RecommendedAction"),
    ("errorCode", 9, "string*"),
    ("entitiesImpacted", 10, ".Entity*"),
    ("metadata", 11, ".HealthEvent.MetadataEntry*"),
    ("generatedTimestamp", 12, ".google.protobuf.Timestamp"),
    ("nodeName", 13, "string"),
    ("processingStrategy", 16, ".ProcessingStrategy"),
]
"""The fields of a HealthEvent that are set: name, number and type, with a star where repeated."""

Field = descriptor_pb2.FieldDescriptorProto
TYPES = {"uint32": Field.TYPE_UINT32, "string": Field.TYPE_STRING, "bool": Field.TYPE_BOOL}


def declared(message: descriptor_pb2.DescriptorProto, fields: list[tuple[str, int, str]]) -> None:
    for title, number, kind in fields:
        field = message.field.add(name=title, number=number, json_name=title)
        field.label = Field.LABEL_REPEATED if kind.endswith("*") else Field.LABEL_OPTIONAL
        kind = kind.rstrip("*")
        if kind in TYPES:
            field.type = TYPES[kind]
        else:
            of_enum = kind in (".RecommendedAction", ".ProcessingStrategy")
            field.type = Field.TYPE_ENUM if of_enum else Field.TYPE_MESSAGE
            field.type_name = kind


def health_events() -> type[Message]:
    """The message HealthEvents as NVSentinel declares it."""
    file = descriptor_pb2.FileDescriptorProto(name="health_event.proto", syntax="proto3")
    file.dependency.append(timestamp.DESCRIPTOR.name)
    for title, values in (("RecommendedAction", ACTIONS), ("ProcessingStrategy", STRATEGIES)):
        enum = file.enum_type.add(name=title)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    declared(
        file.message_type.add(name="Entity"),
        [("entityType", 1, "string"), ("entityValue", 2, "string")],
    )
    event = file.message_type.add(name="HealthEvent")
    declared(event, FIELDS)
    entry = event.nested_type.add(name="MetadataEntry")
    entry.options.map_entry = True
    declared(entry, [("key", 1, "string"), ("value", 2, "string")])
    declared(
        file.message_type.add(name="HealthEvents"),
        [("version", 1, "uint32"), ("events", 2, ".HealthEvent*")],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("HealthEvents"))


def after_sentinel(*advised: NodeAdvice) -> dict[str, Any]:
    """What NVSentinel reads in the events, and writes back."""
    text = FORMATS["health-event"](advised, len(advised) == 1)
    message = json_format.Parse(text, health_events()())
    again: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return again


@pytest.mark.parametrize(
    ("advised", "action", "fatal", "codes"),
    [
        (node(), "COMPONENT_RESET", True, ["119"]),
        (node(xid="79"), "RESTART_BM", True, ["79"]),
        (node(xid="31"), "RESTART_APP", False, ["31"]),
        (node(xid="54"), "CONTACT_SUPPORT", False, ["54"]),
        (quiet(), "NONE", False, []),
    ],
)
def test_nvsentinel_reads_the_event(
    advised: NodeAdvice, action: str, fatal: bool, codes: list[str]
) -> None:
    (event,) = after_sentinel(advised)["events"]
    assert (event["recommendedAction"], event["isFatal"], event["errorCode"]) == (
        action,
        fatal,
        codes,
    )
    assert event["isHealthy"] == (action == "NONE")
    assert (event["agent"], event["nodeName"]) == ("gpunode", "n-1")


def test_an_event_says_which_gpu_and_whom_it_harms() -> None:
    (event,) = after_sentinel(node())["events"]
    assert event["entitiesImpacted"] == [
        {"entityType": "GPU", "entityValue": "3"},
        {"entityType": "GPU_UUID", "entityValue": "GPU-3"},
    ]
    assert event["metadata"] == {"harmedIfDoneNow": "llama-0/llama-0"}
    assert event["generatedTimestamp"] == "2023-11-14T22:13:20Z"


def test_no_event_has_anything_done() -> None:
    for advised in (node(), node(xid="79"), quiet()):
        for event in after_sentinel(advised)["events"]:
            assert event["processingStrategy"] == "STORE_ONLY"


def test_of_a_node_that_is_not_seen_nothing_is_said() -> None:
    assert after_sentinel(blind())["events"] == []


def test_every_action_is_one_of_nvsentinel() -> None:
    assert set(RECOMMENDED.values()) <= ACTIONS.keys()


# JSON


def test_json_has_everything() -> None:
    found = formatted("json", node())
    assert found["action"] == "reset"
    assert found["drain"] is True
    assert found["gpus_to_be_free"] == ["3"]
    assert found["faults"][0]["since"] == "2023-11-14T22:13:20Z"
    (harmed,) = found["harmed_if_done_now"]
    assert (harmed["pod"], harmed["gpus"], harmed["since"]) == ("llama-0", ["3"], None)
    assert [one["node"] for one in formatted("json", node(), quiet())] == ["n-1", "n-1"]


@given(EVIL, st.floats(allow_nan=True, allow_infinity=True))
@example("²", 1e300)
@example("9" * 5000, 0.0)
def test_odd_numbers_of_a_daemon_break_no_format(text: str, when: float) -> None:
    at = {"gpu": text, "uuid": text}
    series = (
        SeriesSample("gpunode_gpu_xid_last_timestamp_seconds", {**at, "xid": text}, when),
        SeriesSample("gpunode_gpu_xid_last_timestamp_seconds", {**at, "xid": "79"}, when),
        SeriesSample("gpunode_gpu_owner_info", {**at, "user": "kim"}, 1.0),
        SeriesSample("gpunode_gpu_process_info", {**at, "user": "kim", "world_size": text}, 1.0),
        SeriesSample("gpunode_gpu_info", {**at, "compute_capability": text, "bus_id": text}, 1.0),
        SeriesSample("gpunode_kernel_log_last_xid_timestamp_seconds", {"xid": text}, when),
    )
    advised = advice(NodeSeries(text, 1_700_000_060.0, series))
    for form in FORMATS.values():
        assert form([advised], True).isascii()
