"""The seconds of collectives over a ring of devices: one formula for gradients, weights and values."""

from dataclasses import dataclass

from graphpipe.cluster.device import Link


@dataclass(frozen=True, slots=True)
class Ring:
    """Devices in a ring, each of which sends to the next one."""

    link: Link | None
    """The slowest link between neighbours, which paces every step; None if there is only one device."""
    degree: int
    """The number of devices."""

    def gather_seconds(self, count: float) -> float:
        """Return the seconds of an all-gather, or reduce-scatter, of `count` bytes: d-1 steps of count/d bytes."""
        return (self.degree - 1) * self.link.seconds(count / self.degree) if self.link and count else 0.0

    def gather_work_seconds(self, count: float) -> float:
        """Return the seconds of work that its messages cost each device, which sends one and receives one per step."""
        if not (self.link and count):
            return 0.0
        return 2 * (self.degree - 1) * self.link.work_seconds(count / self.degree)

    def reduce_seconds(self, count: float) -> float:
        """Return the seconds of an all-reduce of `count` bytes: a reduce-scatter, then an all-gather."""
        return 2 * self.gather_seconds(count)

    def reduce_work_seconds(self, count: float) -> float:
        """Return the seconds of work that the messages of an all-reduce cost each device."""
        return 2 * self.gather_work_seconds(count)

    def reduce_line(self, times: float, bytes_per_sample: float, count: float = 0.0) -> tuple[float, float]:
        """Return the seconds of `times` all-reduces, with their work. A reduce-scatter or an all-gather is half of one.

        Args:
            times: how many.
            bytes_per_sample: that they sum, all of them together.
            count: of bytes besides.

        Returns:
            The seconds of n samples are the first figure, plus n times the second one.
        """
        if self.link is None or not times or not (bytes_per_sample or count):
            return 0.0, 0.0
        steps = 2 * (self.degree - 1)
        per_message = self.link.latency_seconds + 2 * self.link.processor_seconds
        per_byte = 1 / self.link.bandwidth_bytes_per_second + 2 * self.link.processor_seconds_per_byte
        moved = steps * per_byte / self.degree
        return times * steps * per_message + moved * count, moved * bytes_per_sample
