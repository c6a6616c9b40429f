"""A strategy and a workload for kvlab."""
