"""One back end behind the OpenAI chat completions protocol."""
