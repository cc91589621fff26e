from core.testcasecontroller.algorithm.paradigm.joint_inference import JointInference

__all__ = ["JointInference"]
