"""The links of a replica: to routers, to the controller, and to callers that come without a router."""
