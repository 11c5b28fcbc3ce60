"""For people: tables, charts, one HTML page."""
