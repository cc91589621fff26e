from core.testcasecontroller.testcase.runner import Progress, Runner
from core.testcasecontroller.testcase.testcase import TestCase

__all__ = ["Progress", "Runner", "TestCase"]
