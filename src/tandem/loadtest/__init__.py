"""The load tester: sends traffic to any OpenAI-compatible endpoint over HTTP, and says what came of it."""
