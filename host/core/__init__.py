"""The host's side of Ianvs: the job, the test environment, the test cases, the leaderboards."""
