from core.testcasecontroller.testcase.testcase import TestCase

__all__ = ["TestCase"]
