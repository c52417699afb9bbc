"""Text on its way in and out of a model: tokenizer, chat template, incremental detokeniser, stop strings. No torch."""
