"""What Ianvs calls: the edge and the cloud model, their settings and responses, and what they tell each other."""
