from sedna.core.joint_inference.joint_inference import JointInference

__all__ = ["JointInference"]
