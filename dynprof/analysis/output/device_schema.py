"""Tables of the vendor's databases: columns, types, and the meaning of their numbers.

The tables of devices are CANN msprof's, the others torch_npu's.
"""

from __future__ import annotations

Columns = tuple[tuple[str, str], ...]
"""Names and types of columns."""
INTEGER, NUMERIC, TEXT = "INTEGER", "NUMERIC", "TEXT"
NONE = 4294967295
"""The vendor's number for no value."""
NOT_KNOWN = "N/A"
NO_TYPE = 65534
"""The vendor's number of an unknown link, transport or type."""
_ENUM = (("id", INTEGER), ("name", TEXT))


def as_int64(number: object) -> int | None:
    """Return an integer that fits into a column of the database; None for anything else."""
    if isinstance(number, int) and abs(number) < 1 << 63:
        return number
    return None


def _integers(*names: str) -> Columns:
    return tuple((name, INTEGER) for name in names)


DEVICE_TABLES: dict[str, Columns] = {
    "TASK": _integers(
        "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType",
        "contextId", "streamId", "taskId", "modelId",
    ),
    "COMPUTE_TASK_INFO": _integers(
        "name", "globalTaskId", "blockNum", "mixBlockNum", "taskType", "opType", "inputFormats",
        "inputDataTypes", "inputShapes", "outputFormats", "outputDataTypes", "outputShapes",
        "attrInfo", "opState", "hf32Eligible", "gridDim", "blockDim",
    ),
    "COMMUNICATION_OP": (
        *_integers("opName", "startNs", "endNs", "connectionId", "groupName", "opId", "relay",
                   "retry", "dataType", "algType"),
        ("count", NUMERIC), *_integers("opType", "deviceId"),
    ),
    "COMMUNICATION_TASK_INFO": (
        *_integers("name", "globalTaskId", "taskType", "planeId", "groupName", "notifyId",
                   "rdmaType", "srcRank", "dstRank", "transportType", "size", "dataType",
                   "linkType", "opId", "isMaster"),
        ("bandwidth", NUMERIC),
    ),
    "MEMCPY_INFO": (("globalTaskId", NUMERIC), ("size", NUMERIC), ("memcpyOperation", NUMERIC)),
    "CANN_API": _integers("startNs", "endNs", "type", "globalTid", "connectionId", "name"),
    "MSTX_EVENTS": _integers(
        "startNs", "endNs", "eventType", "rangeId", "category", "message", "globalTid",
        "endGlobalTid", "domainId", "connectionId",
    ),
    "NPU_INFO": (("id", INTEGER), ("name", TEXT)),
    "SESSION_TIME_INFO": _integers("startTimeNs", "endTimeNs"),
    "ENUM_MSTX_EVENT_TYPE": _ENUM, "ENUM_MEMCPY_OPERATION": _ENUM, "ENUM_HCCL_DATA_TYPE": _ENUM,
    "ENUM_HCCL_LINK_TYPE": _ENUM, "ENUM_HCCL_TRANSPORT_TYPE": _ENUM, "ENUM_HCCL_RDMA_TYPE": _ENUM,
}  # fmt: skip
LAYERS = {20000: "acl", 15000: "model", 10000: "node", 5500: "communication", 5000: "runtime"}
"""The vendor's numbers of the layers of calls."""
_ODD = {255: "RESERVED", NO_TYPE: NOT_KNOWN, 65535: "INVALID_TYPE"}
ENUMS: dict[str, dict[int, str]] = {
    "ENUM_MSTX_EVENT_TYPE": dict(enumerate(("marker", "push/pop", "start/end", "marker_ex"))),
    "ENUM_MEMCPY_OPERATION": {
        0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device",
        4: "managed memory", 5: "addr device to device", 6: "host to device ex",
        7: "device to host ex", 65535: "other",
    },
    "ENUM_HCCL_DATA_TYPE": {
        **dict(enumerate(("INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64", "UINT8",
                          "UINT16", "UINT32", "FP64", "BFP16", "INT128"))),
        14: "HIF8", 15: "FP8E4M3", 16: "FP8E5M2", 17: "FP8E8M0", **_ODD,
    },
    "ENUM_HCCL_LINK_TYPE": {
        **dict(enumerate(("ON_CHIP", "HCCS", "PCIE", "ROCE", "SIO", "HCCS_SW", "STANDARD_ROCE",
                          "UB", "UBoE"))), **_ODD,
    },
    "ENUM_HCCL_TRANSPORT_TYPE": {
        **dict(enumerate(("SDMA", "RDMA", "LOCAL", "UB", "ROCE"))), **_ODD,
    },
    "ENUM_HCCL_RDMA_TYPE": {0: "RDMA_SEND_NOTIFY", 1: "RDMA_SEND_PAYLOAD", **_ODD},
}  # fmt: skip
