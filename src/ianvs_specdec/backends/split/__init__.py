"""The edge drafts, the cloud verifies: a back end with both sides, and the path between them."""
