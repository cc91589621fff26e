from core.testcasecontroller.metrics.metrics import Metric

__all__ = ["Metric"]
