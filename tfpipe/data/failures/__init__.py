"""Which sample failed, why, and what then: named errors, skipped samples, stalls."""
