from core.testcasecontroller.algorithm.paradigm.joint_inference.joint_inference import JointInference, Stage

__all__ = ["JointInference", "Stage"]
