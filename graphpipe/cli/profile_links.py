"""`graphpipe profile --links`: measure links between local ranks, or between the ranks that torchrun has started."""

from pathlib import Path

from graphpipe.cli.output import Output
from graphpipe.cluster import Cluster
from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.cluster.measured_link import with_links
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.report.tables.links_table import links_table
from graphpipe.torchrun import under_torchrun
from graphpipe.waiting import waiting


def run_links(cluster: Cluster, path: str | None, output: Output) -> int:
    """Measure, show every pair, and write the cluster with the measured links. Under torchrun, rank 0 does so.

    Raises:
        InvalidInput: `path` does not end in `.toml`, or the cluster has one device.
        GraphPipeError: a rank failed.
    """
    if path is not None and Path(path).suffix != ".toml":
        raise InvalidInput(f"is {path}, must end in .toml, as every cluster file does", where="--output")
    with waiting("measuring links"):
        from graphpipe.link_profile.ranks import measure_as_rank, measure_local_links

        measured = measure_as_rank() if under_torchrun() else measure_local_links(len(cluster.devices))
    if measured is None:
        return 0
    measured_cluster = with_links(cluster, measured)
    if path is not None:
        Path(path).write_text(cluster_text(measured_cluster))
    output.show(links_table(measured))
    levels = {level.name: to_body(level.link) for level in measured_cluster.every_level}
    output.emit({"links": [to_body(each) for each in measured], **levels})
    return 0
