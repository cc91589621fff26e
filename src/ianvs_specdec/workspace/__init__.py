"""What a job left in its workspace, read once: test cases, scores, kept answers, both sides of each query."""
