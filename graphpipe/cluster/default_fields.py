"""What the fingerprint of a cluster leaves out: fields of later versions that have their default."""

from typing import Any

from graphpipe.cluster.device import HOST_BANDWIDTH


def without_default_fields(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a cluster as fingerprints use it.

    Clusters of schema version 1 did not say `duplex`, nor anything about the memory of nodes or the work of a byte. A
    cluster of two levels has no field `levels`.
    """
    link, kind = {"processor_seconds_per_byte": 0.0}, {"host_bandwidth_bytes_per_second": HOST_BANDWIDTH}
    pairs: list[dict[str, Any]] = cluster["pair_links"]
    types: list[dict[str, Any]] = cluster["device_types"]
    return _without(cluster, {"duplex": False, "host_memory": []}) | {
        "intra_node": _without(cluster["intra_node"], link),
        "inter_node": _without(cluster["inter_node"], link),
        "pair_links": [pair | {"link": _without(pair["link"], link)} for pair in pairs],
        "device_types": [_without(each, kind) for each in types],
    }


def _without(body: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in body.items() if field not in defaults or value != defaults[field]}
