"""Records of answers: the journal, configurations, baselines, costs, fingerprints."""
