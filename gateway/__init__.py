"""exogate: a multi-channel gateway for AI agents (this file marks the package as exogate's own)."""
