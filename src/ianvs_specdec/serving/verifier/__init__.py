"""The verifier: a target that many edges draft for."""
