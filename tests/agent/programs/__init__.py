"""Training scripts as users write them; the tests run them under `gpuconsole run --`."""
