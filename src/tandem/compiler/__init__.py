"""From a model to an engine file: export, rewrite, quantise, compile. Imports the engine, never the reverse."""
