"""Any server that speaks the OpenAI chat protocol."""
