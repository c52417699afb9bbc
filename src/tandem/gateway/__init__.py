"""One OpenAI-compatible endpoint over every engine. Speaks HTTP and `protocol`; never imports an engine."""
