"""Plain data that all other packages use. The model imports the standard library and msgspec only;
the model reads no clock."""
