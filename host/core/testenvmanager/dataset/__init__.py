from core.testenvmanager.dataset.dataset import Dataset

__all__ = ["Dataset"]
