"""What a model's folder holds, looked at before it is used, and loaded only if it is what it claims to be."""
