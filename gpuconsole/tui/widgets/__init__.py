"""The widgets of the screens: zones that draw rows."""
