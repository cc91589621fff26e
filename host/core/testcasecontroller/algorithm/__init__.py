from core.testcasecontroller.algorithm.algorithm import Algorithm

__all__ = ["Algorithm"]
