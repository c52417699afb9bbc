"""The wire: OpenAI's request and response types, server-sent events, and the contract between engine and gateway.

Types and their checks only. It knows no sockets, no engine and no gateway; both sides import it, so that they can't
disagree about a name.
"""
