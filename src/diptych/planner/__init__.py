"""The search: from a workload, prices and an SLO to the cheapest fleet that holds it, with the reasons."""
