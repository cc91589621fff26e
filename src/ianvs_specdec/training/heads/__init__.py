"""Training of draft heads (EAGLE, EAGLE-3, Medusa) by distillation from a target model; official formats out."""
