from core.cmd.obj.benchmarkingjob import BenchmarkingJob

__all__ = ["BenchmarkingJob"]
