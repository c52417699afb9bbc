"""The HTTP front of one engine: OpenAI's API on one side, tokens to and from the engine core on the other.

It knows the core only as an `EngineClient` and the text layer only as a `TextService`; no scheduler, no torch.
"""
