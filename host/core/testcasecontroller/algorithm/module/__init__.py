from core.testcasecontroller.algorithm.module.module import Module, ModuleConfig

__all__ = ["Module", "ModuleConfig"]
