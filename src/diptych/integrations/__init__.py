"""diptych inside other engines."""
