"""Live changes of a program's training: one module for each knob or group of knobs."""
