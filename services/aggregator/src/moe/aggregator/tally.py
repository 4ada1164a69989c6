"""Counters of a combiner."""

from dataclasses import dataclass

from moe.wire.combining import CombinerStats


@dataclass
class Tally:
    """Counts since the start; see CombinerStats."""

    combined: int = 0
    duplicates: int = 0
    refused: int = 0
    missing: int = 0
    failed: int = 0

    def stats(self, open_calls: int) -> CombinerStats:
        """The figures with the calls that are open now."""
        return CombinerStats(
            combined=self.combined,
            open=open_calls,
            duplicates=self.duplicates,
            refused=self.refused,
            missing=self.missing,
            failed=self.failed,
        )
