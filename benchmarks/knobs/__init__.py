"""What every knob does, measured: a table of knob x scenario."""
