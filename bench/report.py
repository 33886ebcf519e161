"""The report of the codec bench: plain figures, written as JSON."""

from __future__ import annotations

import msgspec

from p2psync.bench.bounds import EntropyBounds
from p2psync.bench.budget import ModelBudget
from p2psync.bench.summary import Figure, summarize
from p2psync.bench.timing import Speed


class FormatSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a delta in one format, decoded again and compared bit by bit. Sizes are bytes."""

    name: str
    title: str
    is_p2psync: bool
    rebuilt: bool = False
    """Written here from the format's published description, for want of the original's code."""
    payload_bytes: int
    changed: int
    part_bytes: int | None = None
    """Set if only a part of the model, of so many bytes, was given to the tool."""
    encode_seconds: float | None = None
    """Of tools only: their processes are what users would run."""

    @property
    def bits(self) -> float:
        """Bits per changed unit, everything counted."""
        return 8 * self.payload_bytes / max(1, self.changed)


class DeltaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One delta. Sizes are bytes."""

    name: str
    source: str
    rate: float | None
    step: int | None
    """Learning rate and number of the step, of a recorded trajectory."""
    asked_density: float | None
    """A drawn delta."""
    model_bytes: int
    units: int
    changed: int
    formats: list[FormatSize]
    bounds: EntropyBounds
    speeds: list[Speed]
    """Empty for a model too small to be timed: it would be read from caches."""
    skipped: list[str]
    """Formats that were not measured, and why."""

    @property
    def density(self) -> float:
        """Share of the units that changed."""
        return self.changed / max(1, self.units)

    def format(self, name: str) -> FormatSize | None:
        """Returns the sizes of a format, None if it was not measured."""
        return next((size for size in self.formats if size.name == name), None)

    def full_to_payload(self, name: str) -> float:
        """Returns how many times smaller than the whole model in bf16, as far as the format saw it."""
        size = self.format(name)
        assert size is not None
        return (size.part_bytes or self.model_bytes) / max(1, size.payload_bytes)

    def times_smaller(self, profile: str, baseline: str) -> float | None:
        """Returns how many times as many bits a baseline takes; None where one was not measured."""
        mine, other = self.format(profile), self.format(baseline)
        return None if mine is None or other is None else other.bits / max(1e-9, mine.bits)


class CodecReport(msgspec.Struct, frozen=True, kw_only=True):
    """All deltas, the budget of a large model, and the machine of the measurements."""

    deltas: list[DeltaReport]
    budgets: list[ModelBudget]
    block_units: int
    chunk_bytes: int
    rounds: int
    first_call_seconds: float
    """First encoding and decoding of a small tensor: compilation, or loading the cached code."""
    cpu: str
    cpus_allowed: int


def figures(report: CodecReport) -> list[Figure]:
    """Returns the figures of a report: sizes are exact, speeds have repeats."""
    found: list[Figure] = []
    for delta in report.deltas:
        for size in delta.formats:
            found += summarize(f"{delta.name}, {size.name}", "size", "bits per changed unit", [size.bits])
        for bound in ("independent", "exponent", "history"):
            known = getattr(delta.bounds, bound)
            bits = [] if known is None else [known.bits]
            found += summarize(f"{delta.name}, bound: {bound}", "size", "bits per changed unit", bits)
        for speed in delta.speeds:
            subject = f"{delta.name}, {speed.profile}, {speed.threads} core(s)"
            found += summarize(subject, "reading both copies", "GB/s", [rate / 1e9 for rate in speed.read_rates])
            for name, ratios in (
                ("scan and extract", speed.scan_ratios),
                ("encode", speed.encode_ratios),
                ("decode and apply", speed.decode_ratios),
            ):
                found += summarize(subject, name, "of reading", ratios)
    return found
