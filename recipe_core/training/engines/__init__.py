"""How each training framework is told what was estimated: one file a framework."""
