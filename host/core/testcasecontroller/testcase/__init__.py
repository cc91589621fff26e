from core.testcasecontroller.testcase.testcase import Failure, TestCase

__all__ = ["Failure", "TestCase"]
