"""Requests by seed: drawn lengths, named traces, trace files; arrivals; prompts. docs/workloads.md."""

from kvlab.workload.lengths import lognormal_lengths
from kvlab.workload.summary import Refused
from kvlab.workload.workload import Workload, describe, make

__all__ = ["Refused", "Workload", "describe", "lognormal_lengths", "make"]
