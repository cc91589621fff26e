"""Results of a job, read from its workspace: test cases, scores, the journal, both models' answers."""
