"""Every method of the gateway."""

from gateway.api import conversations, memory, operating, spending

METHODS = (*conversations.METHODS, *memory.METHODS, *operating.METHODS, *spending.METHODS)
