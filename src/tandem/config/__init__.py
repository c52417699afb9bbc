"""What can be configured: one frozen, documented class for each component, and where its values come from.

Every field carries its own description and bounds (`msgspec.Meta`), so that help texts, tandem.toml's checks and the
documentation are made from one place. It knows no component, only their settings.
"""
