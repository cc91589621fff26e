"""Which model answers a query: recorded outcomes, trained routers, their evaluation."""
