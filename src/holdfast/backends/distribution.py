"""Distributions of values: how many there were, up to which size."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BYTES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)
BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)


class Distribution(Struct):
    """How often something took how long, or had which size."""

    bounds: tuple[float, ...] = SECONDS
    """The upper bounds of its buckets."""
    total: float = 0.0
    worst: float = 0.0
    bucket_counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.bucket_counts:
            self.bucket_counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.bucket_counts)

    def add(self, value: float) -> None:
        """Add a value. There is no lock: an addition is one step for the interpreter. Without its global lock, two
        threads may count as one."""
        bucket = bisect_left(self.bounds, value)
        self.bucket_counts[bucket] += 1
        self.total += value
        if value > self.worst:
            self.worst = value

    def merge(self, other: Distribution) -> None:
        """Add the values of another one with the same bounds."""
        self.total += other.total
        self.worst = max(self.worst, other.worst)
        self.bucket_counts = [sum(pair) for pair in zip(self.bucket_counts, other.bucket_counts, strict=True)]

    def copy(self) -> Distribution:
        """Return a copy that does not change any more."""
        return Distribution(self.bounds, self.total, self.worst, [*self.bucket_counts])

    def buckets(self) -> dict[float, int]:
        """Return how often it was at most so much; cumulative, as in Prometheus."""
        buckets, total = {}, 0
        for bound, count in zip((*self.bounds, float("inf")), self.bucket_counts, strict=True):
            total += count
            buckets[bound] = total
        return buckets
