"""The two sides of a handoff between processes: pure objects that take events and the time, and say what is to be done."""
