"""Training of draft heads (EAGLE, EAGLE-3, Medusa, DFlash) by distillation, in the official formats."""
