"""How fast the input pipeline is, against the machine's limit, and what bounds it."""

from tfpipe.tools.bench.bench import BenchPlan, Report, run

__all__ = ["BenchPlan", "Report", "run"]
