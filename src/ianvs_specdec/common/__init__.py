"""What every other package stands on: errors, plain types, progress, files that survive."""
