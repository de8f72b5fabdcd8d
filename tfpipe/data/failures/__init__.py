"""Which sample failed, why, and what then: named errors, skipped samples, stalls."""

__all__ = ["batches", "diagnose", "missing", "stalled"]
