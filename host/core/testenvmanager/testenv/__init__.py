from core.testenvmanager.testenv.testenv import TestEnv

__all__ = ["TestEnv"]
