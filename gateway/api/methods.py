"""Every method of the gateway."""

from gateway.api import conversations, memory, operating

METHODS = (*conversations.METHODS, *memory.METHODS, *operating.METHODS)
